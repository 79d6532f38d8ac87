"""What a run has reached, before and after by problem, and what it warns of."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from overlap.analysis.health import run_warnings
from overlap.analysis.run_data import RunData
from overlap.errors import count_of
from overlap.evaluation.evaluate import PassRate, paired_change
from overlap.record.progress import change_texts, duration
from overlap.record.timing import mean
from overlap.report.page import card, esc, figure_text, percent, section

PROBLEMS = 60
"""Problems that are drawn; of more, those that changed most."""


def outcome(run: RunData) -> str:
    """The figures of the run as cards."""
    steps, summary = run.steps, run.summary or {}
    cards = [*_heldout_cards(run)]
    if reward := reward_ends(run):
        cards.append(card("mean reward", *reward))
    seconds = summary.get("seconds") or run.total("time/step_s")
    cards.append(card("steps", f"{len(steps):,}", f"in {duration(seconds)}; {run.state}"))
    samples, tokens = run.total("rollout/samples"), run.total("rollout/tokens")
    cards.append(card("samples", f"{samples:,.0f}", f"{tokens:,.0f} response tokens"))
    if whole := run.total("time/step_s"):
        share = run.total("time/exposed_reward_s") / whole
        cards.append(card("exposed reward", percent(share), "of the time of the steps"))
    policy = summary.get("policy") or {}
    if policy.get("path") or policy.get("failure"):
        where = str(policy.get("path") or f"not saved: {policy['failure']}")
        cards.append(card("policy", f"version {policy.get('version', '–')}", where))
    lines = [f"went back: {line}" for line in summary.get("restarts") or ()]
    lines += [f"not written: {line}" for line in summary.get("not_written") or ()]
    told = "".join(f'<p class="note">{esc(line)}</p>' for line in lines)
    return section("outcome", "Outcome", f'<div class="cards">{"".join(cards)}</div>{told}')


def reward_ends(run: RunData) -> tuple[str, str] | None:
    """The mean reward at the beginning and at the end, and over how many steps; None where there is none."""
    rewards = run.known("reward/mean")
    if not rewards:
        return None
    width = max(1, min(5, len(rewards) // 2))
    return (
        f"{mean(rewards[:width]):.3f} → {mean(rewards[-width:]):.3f}",
        f"mean of {count_of(width, 'step')} at either end",
    )


def _heldout_cards(run: RunData) -> list[str]:
    points = evaluation_points(run)
    if not points:
        return []
    name = str(points[-1][1]["measure"])
    first, last = points[0][1], points[-1][1]
    cards = [
        card(
            f"{name} {'before the run' if points[0][0] == 0 else f'after step {points[0][0]}'}",
            rate_text(first),
            bounds_note(first),
        )
    ]
    if len(points) > 1:
        cards.append(card(f"{name} after step {points[-1][0]}", rate_text(last), bounds_note(last)))
    if change := _change(run):
        value, between = change_texts(change, binary=last["measure"] != "mean reward")
        clear = (change["low"] or 0) > 0 or (change["high"] or 0) < 0  # of one problem no bounds are known
        unclear = "" if clear else "no clear change, "
        note = f"{unclear}95% CI {between}; {count_of(change['problems'], 'problem')}, each against itself"
        cards.append(card("change", value, note))
    return cards


def _change(run: RunData) -> dict[str, Any] | None:
    """Change over the problems, its bounds and of how many it is: by problem, else by the summary."""
    rates = [point.rate for point in run.evaluations]
    if len(rates) > 1:
        found = paired_change(rates[0], rates[-1])
        return asdict(found) if found.problems else None
    return _stored_evaluations(run).get("change")


def _stored_evaluations(run: RunData) -> dict[str, Any]:
    """What the summary says of evaluations."""
    summary = run.summary or {}
    return summary.get("pass_at_1") or summary.get("heldout_reward") or {}


def evaluation_points(run: RunData) -> list[tuple[int, dict[str, Any]]]:
    """Step and figures of each evaluation; of runs without groups.jsonl, those of the summary."""
    if run.evaluations:
        return [(point.step, point.rate.figures()) for point in run.evaluations]
    stored = _stored_evaluations(run)
    found = [stored.get("before"), *(stored.get("during") or ()), stored.get("after")]
    return [(int(each.get("step") or 0), {"measure": "pass@1", **each}) for each in found if each]


def rate_text(figures: dict[str, Any]) -> str:
    """A pass rate in percent, another mean as a number."""
    return figure_text(figures["value"]) if figures["measure"] == "mean reward" else percent(figures["value"])


def bounds_note(figures: dict[str, Any]) -> str:
    """The bounds, and of how much they are."""
    more = f", {figures['samples']:,} samples" if figures.get("samples") else ""
    return f"{bounds_text(figures)}; {count_of(figures['problems'], 'held-out problem')}{more}"


def bounds_text(figures: dict[str, Any]) -> str:
    """The 95 % interval."""
    low, high = ({**figures, "value": figures[end]} for end in ("low", "high"))
    return f"95% CI {rate_text(low)} to {rate_text(high)}"


def warnings(run: RunData) -> str:
    """What the checks found, each with its way out."""
    if not run.steps:
        return section("warnings", "Warnings", '<p class="note">No step has ended yet.</p>')
    found = run_warnings(run)
    if not found:
        return section("warnings", "Warnings", '<p class="note">None: all checks of docs/report.md passed.</p>')
    boxes = []
    for warning in found:
        first, last = warning.steps
        steps = f"step {first}" if first == last else f"steps {first} to {last}"
        figures = f"{figure_text(warning.figure)}, bound {figure_text(warning.bound)}"
        figures = f"{warning.kind} · {steps} · {figures} · docs/report.md"
        boxes.append(
            f'<div class="warn"><p><b>{esc(_capital(warning.text))}.</b></p>'
            f'<p class="out">{esc(_capital(warning.way_out))}.</p><small>{esc(figures)}</small></div>'
        )
    return section("warnings", "Warnings", "".join(boxes))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def by_problem(run: RunData) -> str:
    """Held-out problems before and after."""
    rates = [point.rate for point in run.evaluations]
    if len(rates) < 2:
        return ""
    names = (
        ("before" if run.evaluations[0].step == 0 else f"after step {run.evaluations[0].step}"),
        (f"after step {run.evaluations[-1].step}"),
    )
    return section("problems", "Held-out problems", dumbbells(rates[0], rates[-1], names))


def dumbbells(before: PassRate, after: PassRate, names: tuple[str, str]) -> str:
    """A row for each problem: its rate by one policy and by the other, those that changed most at the ends."""
    old = {tally.id: tally.reward for tally in before.tallies if tally.samples}
    pairs = [(t.id, old[t.id], t.reward) for t in after.tallies if t.samples and t.id in old]
    if not pairs:
        return ""
    pairs.sort(key=lambda pair: (pair[1] - pair[2], pair[0]))
    up, down = (sum((b - a) * way > 1e-9 for _, a, b in pairs) for way in (1, -1))
    lead = f"{up} better, {down} worse, {len(pairs) - up - down} the same of {count_of(len(pairs), 'problem')}. "
    if len(pairs) > PROBLEMS:
        pairs = pairs[: PROBLEMS // 2] + pairs[-PROBLEMS // 2 :]
        lead += f"Shown are the {PROBLEMS} that changed most."
    low, high = min(0.0, *(min(p[1:]) for p in pairs)), max(1.0, *(max(p[1:]) for p in pairs))

    def x(value: float) -> str:
        return f"{1.2 + 97.6 * (value - low) / (high - low):.2f}%"

    rows = []
    for at, (_, a, b) in enumerate(pairs):
        y, ink = at * 14 + 7, "var(--c0)" if b > a else "var(--c1)" if b < a else "var(--c7)"
        rows.append(f'<line x1="{x(a)}" x2="{x(b)}" y1="{y}" y2="{y}" stroke="{ink}" stroke-width="2.5"/>')
        rows.append(f'<circle cx="{x(a)}" cy="{y}" r="3.5" fill="var(--panel)" stroke="var(--c7)" stroke-width="1.5"/>')
        rows.append(f'<circle cx="{x(b)}" cy="{y}" r="4" fill="{ink}"/>')
    grid = "".join(f'<line class="grid" x1="{x(v)}" x2="{x(v)}" y1="0" y2="100%"/>' for v in _quarters(low, high))
    labels = "".join(
        f'<span style="left:{x(v)}">{figure_text(v) if high > 1 or low < 0 else percent(v, ".0f")}</span>'
        for v in _quarters(low, high)
    )
    keys = (
        f'<div class="keys"><span><i class="sq" style="color:var(--c7)"></i>{esc(names[0])}</span><span><i class="sq" '
        f'style="color:var(--c0)"></i>{esc(names[1])}, better</span><span><i class="sq" style="color:var(--c1)"></i>'
        f"{esc(names[1])}, worse</span></div>"
    )
    ids = "".join(f'<div title="{esc(name)}">{esc(name)}</div>' for name, *_ in pairs)
    svg = f'<svg height="{14 * len(pairs)}" role="img" aria-label="rates by problem">{grid}{"".join(rows)}</svg>'
    drawn = f'{svg}<div class="ticks at mid">{labels}</div>'
    body = f'<div class="map few"><div class="names">{ids}</div><div>{drawn}</div></div>'
    return f'<p class="lead">{esc(lead)}</p>{keys}{body}'


def _quarters(low: float, high: float) -> list[float]:
    return [low + (high - low) * k / 4 for k in range(5)]
