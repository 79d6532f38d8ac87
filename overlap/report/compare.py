"""Several runs side by side: what they reached, in which fields they differ, their curves over each other, and paired
tests on the held-out problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from overlap.analysis import RunData, run_warnings
from overlap.evaluation import paired_change
from overlap.record import duration
from overlap.report.charts import COLOURS, Series, line_chart, or_zero
from overlap.report.outcome import bounds, dumbbells, evaluation_points, percent_or
from overlap.report.page import esc, figure_text, section, table
from overlap.report.settings import flat, shown

CURVES = (
    ("Reward", "mean of a step", "reward/mean", False),
    ("Solved", "of the samples", "reward/solved_share", True),
    ("Entropy", "nats per token", "learn/entropy", False),
    ("Gradient norm", "before clipping", "learn/grad_norm", False),
    ("Response length", "tokens", "rollout/length_mean", False),
    ("Cut off", "of the samples", "rollout/truncated_share", True),
)


def run_names(runs: Sequence[RunData]) -> list[str]:
    """A short name for each run: the last part of its path, and more of it where two are alike."""
    for parts in range(1, 8):
        names = ["/".join(run.path.parts[-parts:]) for run in runs]
        if len(set(names)) == len(names):
            return names
    return [f"{run.path} ({at})" for at, run in enumerate(runs, 1)]


def outcomes(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """A row for each run."""
    rows = []
    for at, (run, name) in enumerate(zip(runs, names, strict=True)):
        points = evaluation_points(run)
        ends = points[:1] + points[1:][-1:]
        told = [f'{percent_or(found)}<br><small class="soft">{esc(bounds(found))}</small>' for _, found in ends]
        rewards = run.known("reward/mean")
        reward = f"{figure_text(rewards[0])} → {figure_text(rewards[-1])}" if rewards else "–"
        dot = f'<i class="dot" style="color:var(--c{at % COLOURS})"></i>'
        warned = run_warnings(run)
        rows.append(
            [
                f"{dot}<b>{esc(name)}</b>",
                esc(f"{len(run.steps)} steps, {run.state}"),
                esc(reward),
                *(told + ["–"] * (2 - len(told))),
                esc(duration(run.total("time/step_s"))),
                esc(f"{run.total('rollout/samples'):,.0f}"),
                esc(", ".join(w.kind for w in warned) or "none"),
            ]
        )
    head = ("run", "", "reward", "held-out before", "held-out after", "time of steps", "samples", "warnings")
    return section("outcome", "Outcome", table(head, rows, "tight"))


def differences(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """Fields whose values differ."""
    configs = [flat(run.config) for run in runs]
    fields = sorted({name for config in configs for name in config} - {"run.dir"})
    missing = "–"
    rows = []
    for field in fields:
        values = [shown(config[field]) if field in config else missing for config in configs]
        if len(set(values)) > 1:
            rows.append([f"<code>{esc(field)}</code>", *(f"<code>{esc(value)}</code>" for value in values)])
    body = table(("field", *names), rows) if rows else '<p class="note">None but run.dir.</p>'
    return section("configuration", "Differences of configuration", body)


def overlaid(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """The same figures of all runs by samples and by time."""
    parts = []
    for anchor, title, metric, unit, scale in (
        ("samples-axis", "By samples", "rollout/samples", "samples", 1.0),
        ("time-axis", "By time of the steps", "time/step_s", "min", 60.0),
    ):
        places = [[at / scale for at in accumulate(map(or_zero, run.column(metric)))] for run in runs]
        tiles = []
        for name, of, column, share in CURVES:
            if not any(any(run.known(column)) for run in runs):
                continue
            columns = [run.column(column) for run in runs]
            triples = zip(names, columns, places, strict=True)
            lines = [Series(label, values, at % COLOURS, xs) for at, (label, values, xs) in enumerate(triples)]
            tiles.append(line_chart(name, of, [], lines, x_unit=unit, share=share))
        if any(tiles):
            parts.append(section(anchor, title, f'<div class="tiles">{"".join(tiles)}</div>'))
    return "".join(parts)


def paired_tests(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """Every later run against the first one, on the held-out problems that both evaluated last."""
    known = [(run.evaluations[-1], name) for run, name in zip(runs, names, strict=True) if run.evaluations]
    if len(known) < 2:
        return ""
    (base, first), rows, drawn = known[0], [], ""
    for point, name in known[1:]:
        change = paired_change(base.rate, point.rate)
        if not change.problems:
            rows.append([esc(name), "–", "–", "no problem in common"])
            continue
        binary = base.rate.binary and point.rate.binary
        values = [100 * v if binary else v for v in (change.value, change.low, change.high)]
        spec = "+.1f" if binary else "+.3f"
        says = "better" if change.low > 0 else "worse" if change.high < 0 else "no difference that the problems show"
        between = f"{values[1]:{spec}} to {values[2]:{spec}}"
        unit = " points" if binary else ""
        rows.append(
            [f"<b>{esc(name)}</b>", f"{values[0]:{spec}}{unit}", between, f"{says} ({change.problems} problems)"]
        )
        drawn += f'<h3 class="apart">{esc(name)} against {esc(first)}</h3>' + dumbbells(
            base.rate, point.rate, (first, name)
        )
    lead = f"Each problem is compared with itself: the last evaluation of a run against that of {first}."
    body = table(("run", "difference", "95 % interval", ""), rows) + drawn
    return section("paired", "Held-out problems, paired", body, lead)


def all_warnings(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """The warnings of each run, under its name."""
    parts = []
    for run, name in zip(runs, names, strict=True):
        found = run_warnings(run)
        if found:
            parts.append(
                f'<h3 class="apart">{esc(name)}</h3>'
                + "".join(f'<div class="warn"><p>{esc(w)}.</p></div>' for w in found)
            )
    return section("warnings", "Warnings", "".join(parts) or '<p class="note">None.</p>')
