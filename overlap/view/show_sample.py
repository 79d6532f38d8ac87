"""One sample as lines: why it got its reward, its program, the test that decided, what the compiler said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from overlap.analysis.sample_reason import (
    ACCEPTED,
    compared,
    difference_of,
    first_failed_test,
    program_end,
    reason,
    test_message,
    verdict_words,
    whole_text,
)
from overlap.view.branches import branches, depth
from overlap.view.program_text import highlighted, numbered
from overlap.view.terminal import Screen, figure, one_line_of, safe

LONGEST = 200
"""Lines of one text that are shown."""
MARGIN = "    "


class SampleShown:
    """A whole row of trajectories.jsonl as lines."""

    def __init__(self, row: Mapping[str, Any], screen: Screen) -> None:
        self.row, self.screen = row, screen

    def lines(self) -> Iterator[str]:
        """All of it."""
        row, screen = self.row, self.screen
        yield from self.summary()
        yield from self.failing_test()
        if row.get("compile_log") and row["verdict"] == "CE":
            yield from self._text("what the compiler said", row["compile_log"])
        program = row.get("program")
        if program:
            yield screen.title(one_line_of(f"program ({program.get('language') or 'text'})"))
            yield from numbered(highlighted(program["source"], program.get("language") or "", screen), screen)
            for name, text in program.get("files") or ():
                yield screen.title(f"file {screen.cut(name, 60)}")
                yield from numbered(safe(text).splitlines(), screen)
        yield from self._test_table()
        if row.get("compile_log") and row["verdict"] != "CE":
            yield from self._text("what the compiler said", row["compile_log"])
        yield from self._turns()
        dialog = row.get("dialog") or ""
        if not (dialog and dialog.startswith(row["prompt"])):
            yield from self._text("prompt", row["prompt"])
        yield from self._text(*(("dialog", dialog) if dialog else ("answer", row["answer"])))

    def summary(self) -> Iterator[str]:
        """Where it stands, what it got, and why, in one sentence."""
        row, screen = self.row, self.screen
        split = "held-out, after" if row["split"] == "heldout" else "train,"
        where = f"{row['id']} · {split} step {row['step']} · {row['prompt_id']}"
        yield screen.title(screen.cut(where, screen.width and screen.width - 4))
        advantage = "" if row["advantage"] is None else f", advantage {row['advantage']:+.3f}"
        got = f"{screen.verdict(row['verdict'])}  reward {figure(row['reward'])}{advantage}"
        yield f"{got}  {self._size()}"
        yield screen.paint("why  ", bold=True) + one_line_of(reason(row))

    def _size(self) -> str:
        row = self.row
        ended = "" if row["finish"] == "stop" else f", ended by {row['finish']}"
        times = f"generated in {row['generate_s']:.2f} s, judged in {row['verify_s']:.2f} s"
        versions = ", ".join(str(version) for version, *_ in row["versions"])
        return one_line_of(f"({row['tokens']:,} tokens{ended}; {times}; weights {versions or '-'})")

    def failing_test(self) -> Iterator[str]:
        """The first test that failed: input, what was expected and what came, how the program ended."""
        test, screen = first_failed_test(self.row), self.screen
        if test is None:
            return
        what = f"test {test['index'] + 1} · {verdict_words(test['verdict'])}"
        facts = [text for text in (what, program_end(test), *usage(test)) if text]
        yield screen.title(one_line_of(" · ".join(facts)))
        if message := test_message(test):
            yield "message"
            yield from self._indented(message)
        if (given := whole_text(test.get("input"))) is not None:
            yield "input"
            yield from self._indented(given)
        if compared(self.row.get("kind") or "", test):
            yield from self._difference(test)
        else:
            for name, colour, title in (
                ("expected", "green", "expected"),
                ("got", "red", "the program said"),
            ):
                if (text := whole_text(test.get(name))) is not None:
                    yield screen.paint(title if test.get("expected") is not None else name, colour)
                    yield from self._indented(text)
        if (told := whole_text(test.get("stderr"))) and told.strip():
            yield "stderr"
            yield from self._indented(told)

    def _difference(self, test: Mapping[str, Any]) -> Iterator[str]:
        screen = self.screen
        lines = difference_of(self.row.get("kind") or "", test)
        if not lines:
            yield "expected and got are the same as far as they were kept"
            yield from self._indented(whole_text(test["got"]) or "")
            return
        yield f"{screen.paint('- expected', 'green')}  {screen.paint('+ got', 'red')}"
        for line in lines:
            yield screen.paint(line, {"-": "green", "+": "red", "@": "grey"}.get(line[0], ""))

    def _test_table(self) -> Iterator[str]:
        tests = self.row.get("tests") or ()
        if len(tests) < 2:
            return
        yield self.screen.title(f"tests ({self.row['passed']} of {self.row['total']} passed)")
        shown = tests if len(tests) <= 30 else [test for test in tests if test["verdict"] != ACCEPTED][:30]
        yield from self.screen.table(
            ("test", "verdict", "CPU s", "MiB", "end", "message"),
            [
                (
                    t["index"] + 1,
                    t["verdict"],
                    figure(t.get("cpu_s")),
                    _mib(t),
                    "" if t.get("exit") == 0 else program_end(t),
                    t["message"],
                )
                for t in shown
            ],
            right="test MiB",
        )
        if len(shown) < len(tests):
            yield f"… {len(tests) - len(shown)} more tests"

    def _turns(self) -> Iterator[str]:
        row = self.row
        if row["turns"] <= 1 and row["branches"] <= 1:
            return
        yield self.screen.title(f"episode: {row['turns']} turns on {row['branches']} branches")
        found = branches(row)
        for branch in found:
            left = f"leaves {branch.parent} after {branch.shared:,} tokens" if branch.parent else "begins"
            judged = "judged" if branch.number == len(found) else f"ended by {branch.finish}"
            indent = "  " * depth(found, branch.number)
            text = " ".join(branch.text.split())
            yield self.screen.cut(f"{indent}{branch.number}  {left}, {branch.tokens:,} tokens, {judged}  {text}")

    def prompt_lines(self, most: int) -> Iterator[str]:
        """The first lines of the prompt."""
        yield from self._indented(self.row["prompt"], most)

    def _text(self, name: str, text: str) -> Iterator[str]:
        yield self.screen.title(name)
        yield from self._indented(text, margin="")

    def _indented(self, text: str, most: int = LONGEST, margin: str = MARGIN) -> Iterator[str]:
        lines = safe(text).strip("\n").splitlines() or [""]
        yield from (margin + line for line in lines[:most])
        if len(lines) > most:
            yield self.screen.paint(f"{margin}… {len(lines) - most} more lines", "grey")


def usage(test: Mapping[str, Any]) -> list[str]:
    """What a test used of CPU and memory."""
    cpu = f"CPU {test['cpu_s']:.2f} s" if test.get("cpu_s") is not None else ""
    return [cpu, f"{_mib(test)} MiB" if _mib(test) else ""]


def _mib(test: Mapping[str, Any]) -> str:
    return f"{test['memory_bytes'] / 2**20:.0f}" if test.get("memory_bytes") else ""
