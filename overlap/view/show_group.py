"""A group side by side: what each sample got and why, and what they have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from overlap.analysis.sample_reason import dropped_words, first_failed_test, reason
from overlap.view.show_sample import SampleShown
from overlap.view.terminal import Screen, figure, one_line_of, verdict_colour

PROMPT_LINES = 12


class GroupShown:
    """The samples of one group as lines."""

    def __init__(self, samples: Sequence[Mapping[str, Any]], row: Mapping[str, Any] | None, screen: Screen) -> None:
        """``row``: the group in ``groups.jsonl``."""
        self.samples, self.row, self.screen = samples, row, screen

    def lines(self, *, diff: bool = False) -> Iterator[str]:
        """The prompt, then a line for each sample; with ``diff`` the first failing test of each as well."""
        first, screen = self.samples[0], self.screen
        where = f"step {first['step']} · group {first['group']} · {first['prompt_id']}"
        yield screen.title(screen.cut(where))
        if self.row:
            kept = f" · kept as {', '.join(first['kept_as'])}" if first["kept_as"] else ""
            taught = "held-out" if first["split"] == "heldout" else dropped_words(first) or "learned from"
            solved = f"{self.row['solved']} of {self.row['samples']} solved"
            yield one_line_of(f"{solved} · reward {figure(self.row['reward'])} · {taught}{kept}")
        yield from SampleShown(first, screen).prompt_lines(PROMPT_LINES)
        yield ""
        heading = ("sample", "reward", "advantage", "tokens", "verdict", "tests", "same", "why")
        yield from screen.table(heading, map(self._cells, self.samples), right="reward advantage tokens tests")
        if diff:
            for row in filter(first_failed_test, self.samples):
                shown = SampleShown(row, screen)
                yield ""
                yield from shown.summary()
                yield from shown.failing_test()

    def _cells(self, row: Mapping[str, Any]) -> list[Any]:
        verdict = row["verdict"] or "-"
        advantage = row["advantage"]
        colour = "" if not advantage else "green" if advantage > 0 else "red"
        return [
            row["id"],
            figure(row["reward"]),
            ("-" if advantage is None else f"{advantage:+.3f}", colour),
            f"{row['tokens']:,}" + ("…" if row["truncated"] else ""),
            (verdict, verdict_colour(row["verdict"])),
            "" if row["total"] is None else f"{row['passed']}/{row['total']}",
            self._twins(row),
            reason({**row, "dropped": ""}),  # said above of all
        ]

    def _twins(self, row: Mapping[str, Any]) -> str:
        """A letter that samples with the same program share."""
        programs = Counter(sample["program_sha256"] for sample in self.samples if sample["program_sha256"])
        shared = [digest for digest, number in programs.items() if number > 1]
        return chr(ord("a") + shared.index(row["program_sha256"]) % 26) if row["program_sha256"] in shared else ""
