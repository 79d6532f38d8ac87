"""One sample on the terminal: why it got its reward, the test that decided, its program, what the compiler said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.syntax import Syntax
from rich.text import Text

from overlap.inspect.sample_parts import branches, test_parts
from overlap.inspect.sample_reason import first_failed_test, program_end, reason
from overlap.inspect.terminal import figure, one_line_of, safe, table, title, verdict_cell

LONGEST = 200
"""Lines of one text that are shown."""
MARGIN = "    "
Row = Mapping[str, Any]


def sample_shown(row: Row) -> Iterator[RenderableType]:
    """All of a sample."""
    yield from sample_summary(row)
    yield from failing_test(row)
    compiler = [title("what the compiler said"), _text(row["compile_log"])] if row.get("compile_log") else []
    if row["verdict"] == "CE":
        yield from compiler
    if program := row.get("program"):
        yield title(f"program ({program.get('language') or 'text'})")
        yield _highlighted(program["source"], program.get("language") or "")
        for name, text in program.get("files") or ():
            yield title(f"file {name}")
            yield _highlighted(text, "")
    yield from _tests(row)
    if row["verdict"] != "CE":
        yield from compiler
    yield from _episode(row)
    dialog = row.get("dialog") or ""
    if not (dialog and dialog.startswith(row["prompt"])):
        yield from (title("prompt"), _text(row["prompt"]))
    yield from (title("dialog" if dialog else "answer"), _text(dialog or row["answer"]))


def sample_summary(row: Row) -> Iterator[RenderableType]:
    """Yield the place of a sample, its reward, and the reason in one sentence."""
    split = "held-out, after" if row["split"] == "heldout" else "train,"
    yield title(f"{row['id']} · {split} step {row['step']} · {row['prompt_id']}")
    advantage = "" if row["advantage"] is None else f", advantage {row['advantage']:+.3f}"
    ended = "" if row["finish"] == "stop" else f", ended by {row['finish']}"
    versions = ", ".join(str(version) for version, *_ in row["versions"]) or "-"
    times = f"generated in {row['generate_s']:.2f} s, judged in {row['verify_s']:.2f} s"
    size = f"({row['tokens']:,} tokens{ended}; {times}; weights {versions})"
    verdict, style = verdict_cell(row["verdict"])
    got = f"  reward {figure(row['reward'])}{advantage}  {size}"
    yield Text.assemble((one_line_of(verdict), style), one_line_of(got))
    yield Text.assemble(("why  ", "bold"), one_line_of(reason(row)))


def failing_test(row: Row) -> Iterator[RenderableType]:
    """The first test that failed: input, expected and actual value, how the program ended."""
    kind = row.get("kind") or ""
    if (failed := first_failed_test(row)) is None:
        return
    test = test_parts(failed, kind)
    cpu = f"CPU {test['cpu_s']:.2f} s" if test.get("cpu_s") is not None else ""
    memory = f"{_mib(test)} MiB" if _mib(test) else ""
    facts = (f"test {test['index'] + 1}", test["words"], test["ending"], cpu, memory)
    yield title(" · ".join(text for text in facts if text))
    yield from _named("message", test["message"] or None)
    yield from _named("input", test["input"])
    if test["diff"]:
        styles = {"-": "green", "+": "red", "@": "bright_black"}
        yield Text.assemble(("- expected", "green"), "  ", ("+ got", "red"))
        yield from (Text(safe(line), styles.get(line[0], "")) for line in test["diff"])
    else:
        yield from _named("expected", test["expected"], "green")
        yield from _named("the program said" if kind == "interactive" else "got", test["got"], "red")
    yield from _named("stderr", (test["stderr"] or "").strip("\n") or None)


def _named(name: str, text: str | None, style: str = "") -> Iterator[RenderableType]:
    if text is not None:
        yield Text(name, style)
        yield indented(text)


def _tests(row: Row) -> Iterator[RenderableType]:
    tests = row.get("tests") or ()
    if len(tests) < 2:
        return
    yield title(f"tests ({row['passed']} of {row['total']} passed)")
    cells = [
        (
            test["index"] + 1,
            verdict_cell(test["verdict"]),
            figure(test.get("cpu_s")),
            _mib(test),
            "" if test.get("exit") == 0 else program_end(test),
            test.get("message", ""),
        )
        for test in tests
    ]
    yield table(("test", "verdict", "CPU s", "MiB", "end", "message"), cells, right="test MiB")


def _episode(row: Row) -> Iterator[RenderableType]:
    if row["turns"] <= 1 and row["branches"] <= 1:
        return
    yield title(f"episode: {row['turns']} turns on {row['branches']} branches")
    found, cells = branches(row), []
    for branch in found:
        left = f"leaves {branch.parent} after {branch.shared:,} tokens" if branch.parent else "begins"
        judged = "judged" if branch.number == len(found) else f"ended by {branch.finish}"
        number = "  " * branch.depth + str(branch.number)
        cells.append((number, left, f"{branch.tokens:,} tokens", judged, " ".join(branch.text.split())[:LONGEST]))
    yield table(("branch", "where", "length", "end", "text"), cells)


def indented(text: str, most: int = LONGEST) -> Text:
    """The first lines of a text."""
    return _text(text, most, MARGIN)


def _text(text: str, most: int = LONGEST, margin: str = "") -> Text:
    lines = safe(text).strip("\n").split("\n")
    shown = Text("\n".join(margin + line for line in lines[:most]))
    more = f"\n{margin}… {len(lines) - most} more lines" if len(lines) > most else ""
    return shown.append(more, "bright_black")


def _mib(test: Mapping[str, Any]) -> str:
    return f"{test['memory_bytes'] / 2**20:.0f}" if test.get("memory_bytes") else ""


def _highlighted(source: str, language: str) -> Text:
    """A program with numbered lines, in colours where the language is known."""
    lines = Syntax("", language, theme="ansi_dark", background_color="default").highlight(safe(source)).split()
    width = len(str(len(lines)))
    return Text("\n").join(
        Text.assemble((f"{at:>{width}}  ", "bright_black"), line) for at, line in enumerate(lines, 1)
    )
