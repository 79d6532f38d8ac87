"""Several runs side by side: their results, in which fields they differ, their curves over each other, and paired
tests on the held-out problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any, NamedTuple

from overlap.core.errors import count_of
from overlap.evaluation.evaluate import paired_change
from overlap.inspect.curves import thinned
from overlap.inspect.health import run_warnings
from overlap.inspect.outcome import bounds_text, changed_problems, first_and_last_point, rate_text, reward_ends
from overlap.inspect.page_data import flat, value_text
from overlap.inspect.run_data import EvaluationPoint, RunData
from overlap.record.progress import change_texts, duration

CURVES = (
    ("Reward", "mean of a step", "reward/mean", False),
    ("Solved", "of the samples", "reward/solved_share", True),
    ("Entropy", "nats per token", "learn/entropy", False),
    ("Gradient norm", "before clipping", "learn/grad_norm", False),
    ("Response length", "tokens", "rollout/length_mean", False),
    ("Cut off", "of the samples", "rollout/truncated_share", True),
)
AXES = (("samples", "rollout/samples", 1.0), ("min", "time/step_s", 60.0))
"""Units of the x axes, the metric that they sum up, and how much of it is one."""


def run_names(runs: Sequence[RunData]) -> list[str]:
    """A short name for each run: the last part of its path, and more of it where two are alike."""
    for parts in range(1, 8):
        names = ["/".join(run.path.parts[-parts:]) for run in runs]
        if len(set(names)) == len(names):
            return names
    return [f"{run.path} ({at})" for at, run in enumerate(runs, 1)]


def differing_fields(runs: Sequence[RunData]) -> list[list[str]]:
    """Fields of the configurations whose values differ, each with the value of each run."""
    configs = [flat(run.config) for run in runs]
    fields = sorted({name for config in configs for name in config} - {"run.dir"})
    found = [[field, *(value_text(c[field]) if field in c else "–" for c in configs)] for field in fields]
    return [row for row in found if len(set(row[1:])) > 1]


class PairedResult(NamedTuple):
    """A run's last evaluation against that of the first run, on the problems that both have."""

    name: str
    first: str
    difference: str
    interval: str
    says: str
    problems: dict[str, Any] | None

    def __str__(self) -> str:
        told = f": {self.difference} (95% CI {self.interval}), {self.says}" if self.difference else f": {self.says}"
        return f"{self.name} against {self.first} on held-out problems{told}"


def paired_results(runs: Sequence[RunData], names: Sequence[str]) -> list[PairedResult]:
    """Every later run against the first one, on the held-out problems that both evaluated last."""
    known = [(run.evaluations[-1], name) for run, name in zip(runs, names, strict=True) if run.evaluations]
    return [_paired(*known[0], *other) for other in known[1:]]


def _paired(base: EvaluationPoint, first: str, point: EvaluationPoint, name: str) -> PairedResult:
    change = paired_change(base.rate, point.rate)
    if not change.problems:
        return PairedResult(name, first, "", "", "no problem in common", None)
    difference, interval = change_texts(asdict(change), binary=base.rate.binary and point.rate.binary)
    unclear = "no clear difference: the interval includes 0"
    says = "better" if change.low > 0 else "worse" if change.high < 0 else unclear
    says = f"{says} ({count_of(change.problems, 'problem')})"
    return PairedResult(name, first, difference, interval, says, changed_problems(base, point, (first, name)))


def comparison_lines(runs: Sequence[RunData]) -> list[str]:
    """The comparison for a terminal: what each run reached, in which fields they differ, and the paired tests."""
    names, lines = run_names(runs), []
    for run, name in zip(runs, names, strict=True):
        rates = [(point.rate.figures(), point.step) for point in first_and_last_point(run)]
        told = " → ".join(f"{rate_text(figures)} after step {step}" for figures, step in rates)
        heldout = f", held-out {rates[-1][0]['measure']} {told}" if rates else ""
        lines.append(f"{name}  {len(run.steps)} steps, mean reward {reward_ends(run)[0]}{heldout}")
    lines += [f"differs  {field}: {' | '.join(values)}" for field, *values in differing_fields(runs)]
    return [*lines, *map(str, paired_results(runs, names))]


def comparison(runs: Sequence[RunData]) -> dict[str, Any]:
    """The comparison for the page."""
    names = run_names(runs)
    return {
        "names": names,
        "outcomes": [_outcome(run) for run in runs],
        "paired": [result._asdict() for result in paired_results(runs, names)],
        "warnings": [list(map(str, run_warnings(run))) for run in runs],
        "differences": differing_fields(runs),
        "charts": [{"unit": unit, "charts": _overlaid(runs, names, sums, one)} for unit, sums, one in AXES],
    }


def _outcome(run: RunData) -> dict[str, Any]:
    rates = [point.rate.figures() for point in first_and_last_point(run)]
    return {
        "steps": f"{len(run.steps)} steps, {run.state}",
        "reward": reward_ends(run),
        "heldout": [[rate_text(figures), bounds_text(figures)] for figures in rates],
        "time": duration(run.total("time/step_s")),
        "samples": f"{run.total('rollout/samples'):,.0f}",
    }


def _overlaid(runs: Sequence[RunData], names: Sequence[str], sums: str, one: float) -> list[dict[str, Any]]:
    """The same figures of all runs, over the running sum of a metric."""
    places = [thinned(list(accumulate((v if v == v else 0.0) / one for v in run.column(sums)))) for run in runs]
    charts = []
    for title, unit, metric, share in CURVES:
        lines = [
            {"name": name, "colour": at % 7, "values": thinned(run.column(metric)), "xs": xs}
            for at, (run, name, xs) in enumerate(zip(runs, names, places, strict=True))
            if any(run.known(metric))
        ]
        if lines:
            kind = {"title": title, "unit": unit, "share": share, "zero": True, "stacked": False, "note": ""}
            charts.append({**kind, "lines": lines, "marks": []})
    return charts
