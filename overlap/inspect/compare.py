"""Several runs side by side: their results, in which fields they differ, their curves over each other, and paired
tests on the held-out problems.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from overlap.core.errors import count_of
from overlap.evaluation.evaluate import paired_change
from overlap.inspect.curves import Curve, thinned
from overlap.inspect.health import run_warnings
from overlap.inspect.outcome import (
    bounds_text,
    change_text,
    changed_problems,
    first_and_last_point,
    rate_text,
    reward_ends,
)
from overlap.inspect.page_data import flat, value_text
from overlap.inspect.run_data import RunData
from overlap.record.progress import duration

CURVES = (
    Curve("Reward", "mean of a step", {"reward/mean": ""}),
    Curve("Solved", "of the samples", {"reward/solved_share": ""}, share=True),
    Curve("Entropy", "nats per token", {"learn/entropy": ""}),
    Curve("Gradient norm", "before clipping", {"learn/grad_norm": ""}),
    Curve("Response length", "tokens", {"rollout/length_mean": ""}),
    Curve("Cut off", "of the samples", {"rollout/truncated_share": ""}, share=True),
)
"""A line of each run."""
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


def paired_results(runs: Sequence[RunData], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The last evaluation of every later run against that of the first one, on the held-out problems that both have:
    ``difference`` with its ``interval``, what that ``says``, and the ``problems``.
    """
    known = [(run.evaluations[-1], name) for run, name in zip(runs, names, strict=True) if run.evaluations]
    for point, name in known[1:]:
        base, first = known[0]
        change = paired_change(base.rate, point.rate)
        difference, interval = change_text(base, point, change) if change.problems else ("", "")
        says = "better" if change.low > 0 else "worse" if change.high < 0 else ""
        says = f"{says or 'no clear difference: the interval includes 0'} ({count_of(change.problems, 'problem')})"
        yield {
            "name": name,
            "first": first,
            "difference": difference,
            "interval": interval,
            "says": says if change.problems else "no problem in common",
            "problems": changed_problems(base, point, (first, name)),
        }


def comparison_lines(runs: Sequence[RunData]) -> list[str]:
    """The comparison for a terminal: what each run reached, in which fields they differ, and the paired tests."""
    names, lines = run_names(runs), []
    for run, name in zip(runs, names, strict=True):
        rates = [(point.rate.figures(), point.step) for point in first_and_last_point(run)]
        told = " → ".join(f"{rate_text(figures)} after step {step}" for figures, step in rates)
        heldout = f", held-out {rates[-1][0]['measure']} {told}" if rates else ""
        lines.append(f"{name}  {len(run.steps)} steps, mean reward {reward_ends(run)[0]}{heldout}")
    lines += [f"differs  {field}: {' | '.join(values)}" for field, *values in differing_fields(runs)]
    for pair in paired_results(runs, names):
        change = f"{pair['difference']} (95% CI {pair['interval']}), " if pair["difference"] else ""
        lines.append(f"{pair['name']} against {pair['first']} on held-out problems: {change}{pair['says']}")
    return lines


def comparison(runs: Sequence[RunData]) -> dict[str, Any]:
    """The comparison for the page."""
    names = run_names(runs)
    return {
        "names": names,
        "outcomes": [_outcome(run) for run in runs],
        "paired": list(paired_results(runs, names)),
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
    for curve in CURVES:
        (metric,) = curve.lines
        lines = [
            {"name": name, "colour": at % 7, "values": thinned(run.column(metric)), "xs": xs}
            for at, (run, name, xs) in enumerate(zip(runs, names, places, strict=True))
            if any(run.known(metric))
        ]
        charts += [{**curve.look(), "lines": lines, "marks": []}] if lines else []
    return charts
