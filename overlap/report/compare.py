"""Several runs side by side: what they reached, in which fields they differ, their curves over each other, and paired
tests on the held-out problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import NamedTuple

from overlap.analysis.health import run_warnings
from overlap.analysis.run_data import RunData
from overlap.errors import count_of
from overlap.evaluation.evaluate import PassRate, paired_change
from overlap.record.progress import change_texts, duration
from overlap.report.charts import COLOURS, Series, line_chart, or_zero
from overlap.report.outcome import bounds_text, dumbbells, evaluation_points, rate_text, reward_ends
from overlap.report.page import esc, section, table
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
        told = [rate_text(found) + _below(bounds_text(found)) for _, found in ends]
        reward, of = reward_ends(run) or ("–", "")
        dot = f'<i class="dot" style="color:var(--c{at % COLOURS})"></i>'
        warned = run_warnings(run)
        rows.append(
            [
                f"{dot}<b>{esc(name)}</b>{_below(f'{len(run.steps)} steps, {run.state}')}",
                esc(reward) + _below(of),
                *(told + ["–"] * (2 - len(told))),
                esc(duration(run.total("time/step_s"))),
                esc(f"{run.total('rollout/samples'):,.0f}"),
                esc(", ".join(w.kind for w in warned) or "none"),
            ]
        )
    head = ("run", "mean reward", "held-out before", "held-out after", "time of steps", "samples", "warnings")
    return section("outcome", "Outcome", table(head, rows, "tight"))


def differing_fields(runs: Sequence[RunData]) -> list[tuple[str, list[str]]]:
    """Fields of the configurations whose values differ, with the value of each run."""
    configs = [flat(run.config) for run in runs]
    fields = sorted({name for config in configs for name in config} - {"run.dir"})
    found = [(field, [shown(config[field]) if field in config else "–" for config in configs]) for field in fields]
    return [(field, values) for field, values in found if len(set(values)) > 1]


def differences(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """The same as a table."""
    rows = [[f"<code>{esc(text)}</code>" for text in (field, *values)] for field, values in differing_fields(runs)]
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


class PairedResult(NamedTuple):
    """A run's last evaluation against that of the first run, on the problems that both have."""

    name: str
    first: str
    rates: tuple[PassRate, PassRate]
    """Of the first run, and of this one."""
    difference: str
    interval: str
    says: str

    def __str__(self) -> str:
        told = f": {self.difference} (95% CI {self.interval}), {self.says}" if self.difference else f": {self.says}"
        return f"{self.name} against {self.first} on held-out problems{told}"


def paired_results(runs: Sequence[RunData], names: Sequence[str]) -> list[PairedResult]:
    """Every later run against the first one, on the held-out problems that both evaluated last."""
    known = [(run.evaluations[-1].rate, name) for run, name in zip(runs, names, strict=True) if run.evaluations]
    return [_paired(*known[0], *other) for other in known[1:]]


def _paired(base: PassRate, first: str, rate: PassRate, name: str) -> PairedResult:
    change = paired_change(base, rate)
    if not change.problems:
        return PairedResult(name, first, (base, rate), "", "", "no problem in common")
    binary = base.binary and rate.binary
    difference, interval = change_texts(asdict(change), binary=binary)
    unclear = "no clear difference: the interval includes 0"
    says = "better" if change.low > 0 else "worse" if change.high < 0 else unclear
    says = f"{says} ({count_of(change.problems, 'problem')})"
    return PairedResult(name, first, (base, rate), difference, interval, says)


def paired_tests(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """The same as a table, and problem by problem."""
    found = paired_results(runs, names)
    if not found:
        return ""
    rows = [[f"<b>{esc(p.name)}</b>", p.difference or "–", p.interval or "–", p.says] for p in found]
    drawn = ""
    for p in found:
        if p.difference:
            drawn += f'<h3 class="apart">{esc(p.name)} against {esc(p.first)}</h3>'
            drawn += dumbbells(*p.rates, (p.first, p.name))
    lead = f"Each problem is compared with itself: the last evaluation of a run against that of {found[0].first}."
    body = table(("run", "difference", "95% CI", ""), rows) + drawn
    return section("paired", "Held-out problems, paired", body, lead)


def comparison_lines(runs: Sequence[RunData]) -> list[str]:
    """The comparison for a terminal: what each run reached, in which fields they differ, and the paired tests."""
    names = run_names(runs)
    lines = []
    for run, name in zip(runs, names, strict=True):
        points = evaluation_points(run)
        rates = [f"{rate_text(found)} after step {step}" for step, found in points[:1] + points[1:][-1:]]
        heldout = f", held-out {points[-1][1]['measure']} {' → '.join(rates)}" if points else ""
        lines.append(f"{name}  {len(run.steps)} steps, mean reward {(reward_ends(run) or ('–',))[0]}{heldout}")
    for field, values in differing_fields(runs):
        lines.append(f"differs  {field}: {' | '.join(values)}")
    return [*lines, *map(str, paired_results(runs, names))]


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


def _below(text: str) -> str:
    """A smaller line within a cell."""
    return f'<br><small class="soft">{esc(text)}</small>' if text else ""
