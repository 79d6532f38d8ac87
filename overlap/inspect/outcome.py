"""Results of a run: its figures as cards, and the held-out problems before and after."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from overlap.core.errors import count_of
from overlap.evaluation.evaluate import Estimate, paired_change
from overlap.inspect.run_data import EvaluationPoint, RunData
from overlap.record.progress import change_texts, duration
from overlap.record.timing import mean

PROBLEMS = 60
"""Problems that are drawn at most; of more, the ones that changed most."""
Card = tuple[str, str, str]
"""Name, value, and a note."""


def cards(run: RunData) -> list[Card]:
    """The figures of the run."""
    summary, whole = run.summary or {}, run.total("time/step_s")
    found = _heldout_cards(run)
    if run.known("reward/mean"):
        found.append(("mean reward", *reward_ends(run)))
    found.append(("steps", f"{len(run.steps):,}", f"in {duration(summary.get('seconds') or whole)}; {run.state}"))
    tokens = f"{run.total('rollout/tokens'):,.0f} response tokens"
    found.append(("samples", f"{run.total('rollout/samples'):,.0f}", tokens))
    if whole:
        share = run.total("time/exposed_reward_s") / whole
        found.append(("exposed reward", percent(share), "of the time of the steps"))
    policy = summary.get("policy") or {}
    if policy.get("path"):
        found.append(("policy", f"version {policy.get('version', '–')}", str(policy["path"])))
    elif policy.get("failure"):
        found.append(("policy", "not saved", str(policy["failure"])))
    return found


def reward_ends(run: RunData) -> tuple[str, str]:
    """The mean reward at the beginning and at the end, and over how many steps; "–" where there is none."""
    rewards = run.known("reward/mean")
    if not rewards:
        return "–", ""
    width = max(1, min(5, len(rewards) // 2))
    ends = f"{mean(rewards[:width]):.3f} → {mean(rewards[-width:]):.3f}"
    return ends, f"mean of {count_of(width, 'step')} at either end"


def first_and_last_point(run: RunData) -> list[EvaluationPoint]:
    """The first and the last evaluation, as far as there are any."""
    return run.evaluations[:1] + run.evaluations[1:][-1:]


def _heldout_cards(run: RunData) -> list[Card]:
    points, found = first_and_last_point(run), []
    for point in points:
        figures = point.rate.figures()
        of = f"{count_of(figures['problems'], 'held-out problem')}, {count_of(figures['samples'], 'sample')}"
        found.append((f"{figures['measure']} {when(point)}", rate_text(figures), f"{bounds_text(figures)}; {of}"))
    if len(points) < 2:
        return found
    change = paired_change(points[0].rate, points[1].rate)
    if change.problems:
        value, between = change_text(points[0], points[1], change)
        unclear = "" if change.low > 0 or change.high < 0 else "no clear change, "
        of = f"{count_of(change.problems, 'problem')}, each against itself"
        found.append(("change", value, f"{unclear}95% CI {between}; {of}"))
    return found


def change_text(before: EvaluationPoint, after: EvaluationPoint, change: Estimate) -> tuple[str, str]:
    """The change between two evaluations, and its 95 % interval."""
    return change_texts(asdict(change), binary=before.rate.binary and after.rate.binary)


def when(point: EvaluationPoint) -> str:
    """The time of an evaluation."""
    return f"after step {point.step}" if point.step else "before the run"


def percent(value: float | None) -> str:
    """A share as "12.5%"."""
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:.1f}%"


def rate_text(figures: Mapping[str, Any], name: str = "value") -> str:
    """A pass rate in percent, another mean as a number."""
    value = figures[name]
    if figures["measure"] != "mean reward":
        return percent(value)
    return "–" if value is None or not math.isfinite(value) else f"{value:.3g}"


def bounds_text(figures: Mapping[str, Any]) -> str:
    """The 95 % interval."""
    return f"95% CI {rate_text(figures, 'low')} to {rate_text(figures, 'high')}"


def changed_problems(before: EvaluationPoint, after: EvaluationPoint, names: tuple[str, str]) -> dict[str, Any] | None:
    """Each problem with its rate by one policy and by the other, the problems that changed most at the ends; None
    where the evaluations have no problem in common.
    """
    old = {tally.id: tally.reward for tally in before.rate.tallies if tally.samples}
    pairs = [(t.id, old[t.id], t.reward) for t in after.rate.tallies if t.samples and t.id in old]
    if not pairs:
        return None
    pairs.sort(key=lambda pair: (pair[1] - pair[2], pair[0]))
    up, down = (sum((b - a) * way > 1e-9 for _, a, b in pairs) for way in (1, -1))
    lead = f"{up} better, {down} worse, {len(pairs) - up - down} the same of {count_of(len(pairs), 'problem')}."
    if len(pairs) > PROBLEMS:
        pairs = pairs[: PROBLEMS // 2] + pairs[-PROBLEMS // 2 :]
        lead += f" Shown are the {PROBLEMS} that changed most."
    return {"names": names, "lead": lead, "rows": pairs}


def heldout_problems(run: RunData) -> dict[str, Any] | None:
    """The same of the first and the last evaluation of a run."""
    points = first_and_last_point(run)
    return changed_problems(points[0], points[-1], (when(points[0]), when(points[-1]))) if len(points) > 1 else None
