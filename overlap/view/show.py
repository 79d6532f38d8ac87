"""``overlap show``: what a run has, a step, a group side by side, a problem over time, or one sample, as lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from overlap.analysis.run_data import RunData
from overlap.analysis.sample_file import SampleHead, group_key
from overlap.analysis.sample_reason import reason
from overlap.errors import ConfigError, count_of
from overlap.view.missing import what_is_missing
from overlap.view.overview import group_table, overview
from overlap.view.sample_filter import SampleFilter
from overlap.view.show_group import GroupShown
from overlap.view.show_sample import SampleShown
from overlap.view.show_tokens import token_lines
from overlap.view.source import group_rows, open_samples
from overlap.view.terminal import Screen, figure, shown_argument, verdict_colour
from overlap.view.tokens import TokenFigure, TokenTexts

NEWEST = 20
"""Samples that a list shows, the newest first."""


@dataclass(frozen=True, slots=True)
class ShowChoice:
    """What is to be shown."""

    only: SampleFilter = field(default_factory=SampleFilter)
    diff: bool = False
    """The first failing test of each sample, with the difference."""
    tokens: TokenFigure | None = None
    limit: int = NEWEST


def show_samples(name: str, choice: ShowChoice, screen: Screen | None = None) -> Iterator[str]:
    """The lines about run ``name``. Raises ConfigError where there is no such run, step, group, sample or problem."""
    run, only = open_samples(name), choice.only
    shown = Show(run, name, choice, screen or Screen.of())
    if only.sample is not None:
        yield from shown.one_sample()
    elif only.failed or only.failure or only.weak or only.verdict:
        yield from shown.listed(shown.found())
    elif only.group is not None:
        yield from shown.one_group()
    elif only.problem:
        yield from shown.one_problem()
    elif only.dropped:
        yield from shown.dropped()
    elif only == SampleFilter():
        yield from overview(run, shown.name, shown.screen)
    else:
        yield from shown.groups()


class Show:
    """Shows the parts of one run."""

    def __init__(self, run: RunData, name: str, choice: ShowChoice, screen: Screen) -> None:
        self.run, self.name, self.choice, self.screen = run, shown_argument(name), choice, screen
        self.only = choice.only

    def found(self) -> list[SampleHead]:
        """The samples that are asked for. Raises ConfigError where there are none."""
        heads = self.only.of(self.run.samples.heads())
        if not heads:
            raise what_is_missing(self.run, self.only)
        return heads

    def one_sample(self) -> Iterator[str]:
        """The newest sample of a number within its group; where several groups have one, a line says so."""
        heads = self.found()
        head = heads[-1]
        row = self.run.samples.row(head)
        if len(heads) > 1:
            yield f"{len(heads)} samples are meant; this is the newest (--step and --group choose another)"
        if self.choice.tokens:
            yield from token_lines(row, self.choice.tokens, TokenTexts(self.run), self.screen)
            return
        yield from SampleShown(row, self.screen).lines()
        mates = [h for h in self.run.samples.heads() if group_key(h.values) == group_key(head.values)]
        if len(mates) > 1:
            yield ""
            yield self._hint(f"--step {row['step']} --group {row['group']}", "shows its group side by side")

    def one_group(self) -> Iterator[str]:
        """The newest group of a number, side by side. One whose samples are not kept is told by its row alone."""
        try:
            heads = self.found()
        except ConfigError:
            rows = [row for row in group_rows(self.run) if self.only.matches_group(row)]
            if not rows:
                raise
            yield from group_table(rows, self.screen)
            yield ""
            yield f"its samples were not kept (run.samples={self.run.config.get('run', {}).get('samples', 'some')})"
            return
        newest = group_key(heads[-1].values)
        samples = [self.run.samples.row(head) for head in heads if group_key(head.values) == newest]
        row = next((row for row in reversed(group_rows(self.run)) if group_key(row) == newest), None)
        yield from GroupShown(samples, row, self.screen).lines(diff=self.choice.diff)
        yield ""
        step = samples[0]["step"]
        lowest = min(samples, key=lambda row: (row["reward"] is None, row["reward"] or 0.0))
        yield self._hint(f"--step {step} --sample {lowest['id']}", "shows one of them whole")

    def one_problem(self) -> Iterator[str]:
        """How often a problem was solved over the steps, and its samples."""
        rows = [
            row
            for row in group_rows(self.run)
            if row["prompt_id"] == self.only.problem and self.only.matches_group(row)
        ]
        if not rows:
            self.found()  # says what is near
        yield self.screen.title(f"problem {self.screen.cut(self.only.problem)}")
        yield from group_table(rows, self.screen)
        heads = self.only.of(self.run.samples.heads())
        if heads:
            yield ""
            yield from self.listed(heads)

    def groups(self) -> Iterator[str]:
        """The groups of a step, or of evaluations."""
        rows = [row for row in group_rows(self.run) if self.only.matches_group(row)]
        if not rows:
            self.found()  # raises
        if self.only.step is None:
            step = rows[-1]["step"]
            rows = [row for row in rows if row["step"] == step]
        where = "after" if self.only.split == "heldout" else "of"
        yield self.screen.title(f"{count_of(len(rows), 'group')} {where} step {rows[-1]['step']}")
        yield from self._table(rows)

    def dropped(self) -> Iterator[str]:
        """The groups that taught nothing, the newest first, and why."""
        rows = [row for row in group_rows(self.run) if row["split"] == "train" and self.only.matches_group(row)][::-1]
        if not rows:
            places = replace(self.only, dropped=False)
            if not places.of(self.run.samples.heads()):
                raise what_is_missing(self.run, places)
            yield "every group taught something"
            return
        chosen = rows[: self.choice.limit]
        yield self.screen.title(f"{count_of(len(rows), 'group')} that taught nothing, newest first")
        yield from self._table(chosen)
        if len(rows) > len(chosen):
            yield f"… {len(rows) - len(chosen):,} more: --limit N shows more of them, --step N those of a step"

    def _table(self, rows: list[dict[str, Any]]) -> Iterator[str]:
        kept = {group_key(head.values) for head in self.run.samples.heads()}
        yield from group_table(rows, self.screen, kept=kept)
        yield ""
        row = next((row for row in reversed(rows) if group_key(row) in kept), rows[-1])
        yield self._hint(f"--step {row['step']} --group {row['group']}", "shows a group side by side")

    def listed(self, heads: list[SampleHead]) -> Iterator[str]:
        """The newest of these samples, a line each with the reason of its reward."""
        chosen = heads[::-1][: self.choice.limit]
        what = " that did not pass" if self.only.failed else ""
        yield self.screen.title(f"{count_of(len(heads), 'kept sample')}{what}, newest first")
        rows = [self.run.samples.row(head) for head in chosen]
        if self.choice.diff:
            for row in rows:
                yield from SampleShown(row, self.screen).summary()
                yield from SampleShown(row, self.screen).failing_test()
                yield ""
        else:
            yield from self.screen.table(
                ("step", "sample", "problem", "reward", "verdict", "why"),
                [(r["step"], r["id"], r["prompt_id"], figure(r["reward"]), _verdict(r), reason(r)) for r in rows],
                right="step reward",
            )
        if len(heads) > len(chosen):
            yield f"… {len(heads) - len(chosen):,} more: --limit N shows more of them, --step N those of a step"
        if not self.choice.diff and rows:
            yield ""
            yield self._hint(f"--step {rows[0]['step']} --sample {rows[0]['id']}", "shows one of them whole")

    def _hint(self, flags: str, what: str) -> str:
        return self.screen.paint(f"overlap show {self.name} {flags}", "cyan") + f"   {what}"


def _verdict(row: dict[str, Any]) -> tuple[str, str]:
    return row["verdict"] or "-", verdict_colour(row["verdict"])
