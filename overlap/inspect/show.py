"""``overlap show``: what a run has, a step, a group side by side, a problem over time, or one sample, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import RenderableType

from overlap.core.errors import count_of
from overlap.inspect.overview import group_table, overview
from overlap.inspect.run_data import RunData
from overlap.inspect.sample_filter import SampleFilter, what_is_missing
from overlap.inspect.sample_reason import first_failed_test, reason, trained_on
from overlap.inspect.show_sample import failing_test, indented, sample_shown, sample_summary
from overlap.inspect.terminal import figure, hint, one_line_of, shown_argument, table, title, verdict_cell
from overlap.record.sample_file import SampleHead, group_key

NEWEST = 20
"""Samples that a list shows, the newest first."""
PROMPT_LINES = 12
Parts = Iterator[RenderableType]


@dataclass(frozen=True, slots=True)
class RunShown:
    """Shows the parts of one run. ``name`` is that of the run on the command line."""

    run: RunData
    name: str
    only: SampleFilter = field(default_factory=SampleFilter)
    diff: bool = False
    """The first failing test of each sample, with the difference."""
    limit: int = NEWEST

    def parts(self) -> Parts:
        """Return the chosen parts. Raises ConfigError where there is no such step, group, sample or problem."""
        only = self.only
        if only.sample is not None:
            return self._one_sample()
        if only.failed:
            return self._listed(self.found())
        if only.group is not None:
            return self._one_group()
        if only.problem:
            return self._one_problem()
        return overview(self.run, shown_argument(self.name)) if only == SampleFilter() else self._groups()

    def found(self) -> list[SampleHead]:
        """The samples that are asked for. Raises ConfigError where there are none."""
        heads = self.only.of(self.run.samples.heads())
        if not heads:
            raise what_is_missing(self.run, self.only)
        return heads

    def _rows(self) -> list[dict[str, Any]]:
        rows = [row for row in self.run.group_rows if self.only.matches_group(row)]
        return [row for row in rows if row["split"] == "train"] if self.only.dropped else rows

    def _one_sample(self) -> Parts:
        """The newest sample of a number within its group; where several groups have one, a line says so."""
        heads = self.found()
        row = self.run.samples.row(heads[-1])
        if len(heads) > 1:
            yield f"{len(heads)} samples are meant; this is the newest (--step and --group choose another)"
        yield from sample_shown(row)
        if sum(group_key(head.values) == group_key(row) for head in self.run.samples.heads()) > 1:
            yield from self._hint(f"--step {row['step']} --group {row['group']}", "shows its group side by side")

    def _one_group(self) -> Parts:
        """The newest group of a number, side by side; one whose samples are not kept by its row alone."""
        rows = self._rows()
        if rows and not self.only.of(self.run.samples.heads()):
            yield group_table(rows)
            yield ""
            yield f"its samples were not kept (run.samples={self.run.config.get('run', {}).get('samples', 'some')})"
            return
        heads = self.found()
        key = group_key(heads[-1].values)
        samples = [self.run.samples.row(head) for head in heads if group_key(head.values) == key]
        yield from _group(samples, next((row for row in reversed(rows) if group_key(row) == key), None))
        if self.diff:
            yield from self._failing_tests(filter(first_failed_test, samples))
        lowest = min(samples, key=lambda row: (row["reward"] is None, row["reward"] or 0.0))
        yield from self._hint(f"--step {lowest['step']} --sample {lowest['id']}", "shows one of them whole")

    def _one_problem(self) -> Parts:
        """Yield how often a problem was solved over the steps, and its samples."""
        rows = self._rows()
        heads = self.only.of(self.run.samples.heads()) if rows else self.found()
        yield title(f"problem {self.only.problem}")
        yield group_table(rows)
        if heads:
            yield ""
            yield from self._listed(heads)

    def _groups(self) -> Parts:
        """The groups of a step, or of evaluations; or groups that were not trained on, the newest first, and why."""
        rows, dropped = self._rows(), self.only.dropped
        if not rows:
            places = replace(self.only, dropped=False)
            if not places.of(self.run.samples.heads()):
                raise what_is_missing(self.run, places)
            yield "every group was trained on"
            return
        if dropped:
            heading, shown = "not trained on, newest first", rows[::-1][: self.limit]
        else:
            rows = shown = [row for row in rows if row["step"] == rows[-1]["step"]]
            heading = f"{'after' if self.only.split == 'heldout' else 'of'} step {rows[-1]['step']}"
        yield title(f"{count_of(len(rows), 'group')} {heading}")
        kept = {group_key(head.values) for head in self.run.samples.heads()}
        yield group_table(shown, kept=kept)
        row = next((row for row in reversed(shown) if group_key(row) in kept), shown[-1])
        yield from self._hint(f"--step {row['step']} --group {row['group']}", "shows a group side by side")
        yield from _more(len(rows) - len(shown))

    def _listed(self, heads: list[SampleHead]) -> Parts:
        """The newest of these samples, a line each with the reason of its reward."""
        rows = [self.run.samples.row(head) for head in heads[::-1][: self.limit]]
        what = " that did not pass" if self.only.failed else ""
        yield title(f"{count_of(len(heads), 'kept sample')}{what}, newest first")
        if self.diff:
            yield from self._failing_tests(rows)
            yield from _more(len(heads) - len(rows))
            return
        cells = [
            (r["step"], r["id"], r["prompt_id"], figure(r["reward"]), verdict_cell(r["verdict"]), reason(r))
            for r in rows
        ]
        yield table(("step", "sample", "problem", "reward", "verdict", "why"), cells, right="step reward")
        yield from _more(len(heads) - len(rows))
        yield from self._hint(f"--step {rows[0]['step']} --sample {rows[0]['id']}", "shows one of them whole")

    def _failing_tests(self, rows: Iterator[dict[str, Any]] | Sequence[dict[str, Any]]) -> Parts:
        for row in rows:
            yield ""
            yield from sample_summary(row)
            yield from failing_test(row)

    def _hint(self, flags: str, what: str) -> Parts:
        yield ""
        yield hint(f"overlap show {shown_argument(self.name)} {flags}", what)


def _group(samples: Sequence[Mapping[str, Any]], row: Mapping[str, Any] | None) -> Parts:
    """The prompt, then a line for each sample."""
    first = samples[0]
    yield title(f"step {first['step']} · group {first['group']} · {first['prompt_id']}")
    if row:
        kept = f" · kept as {', '.join(first['kept_as'])}" if first["kept_as"] else ""
        solved = f"{row['solved']} of {row['samples']} solved · reward {figure(row['reward'])}"
        yield one_line_of(f"{solved} · trained on: {trained_on(row)}{kept}")
    yield indented(first["prompt"], PROMPT_LINES)
    yield ""
    programs = Counter(sample["program_sha256"] for sample in samples if sample["program_sha256"])
    shared = [digest for digest, number in programs.items() if number > 1]
    heading = ("sample", "reward", "advantage", "tokens", "verdict", "tests", "same", "why")
    cells = [_group_cells(sample, shared) for sample in samples]
    yield table(heading, cells, right="reward advantage tokens tests")


def _group_cells(row: Mapping[str, Any], shared: Sequence[str]) -> list[Any]:
    """``shared``: digests of programs that several samples have; these share a letter."""
    advantage, digest = row["advantage"], row["program_sha256"]
    return [
        row["id"],
        figure(row["reward"]),
        ("-", "") if advantage is None else (f"{advantage:+.3f}", "green" if advantage > 0 else "red"),
        f"{row['tokens']:,}" + ("…" if row["truncated"] else ""),
        verdict_cell(row["verdict"]),
        "" if row["total"] is None else f"{row['passed']}/{row['total']}",
        chr(ord("a") + shared.index(digest) % 26) if digest in shared else "",
        reason({**row, "dropped": ""}),  # said above of all
    ]


def _more(left: int) -> Parts:
    if left > 0:
        yield f"… {left:,} more: --limit N shows more of them, --step N those of a step"
