"""Tests of ``overlap show``: what a stranger reads about a run, a step, a group, a problem and a sample."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kept_rows import kept_row, write_rows
from made_run import made_run
from rich.cells import cell_len
from rich.text import Text

from overlap import cli, load_run
from overlap.inspect.outcome import cards
from overlap.inspect.run_data import open_samples
from overlap.inspect.sample_filter import SampleFilter
from overlap.inspect.show import RunShown
from overlap.inspect.terminal import console_of, drawn, table

Shown = Callable[..., str]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture) -> Shown:
    """Runs ``overlap show`` with these words; its output, or what it said of bad input."""

    def run(*words: str | Path) -> str:
        code = cli.main(["show", *map(str, words)])
        said = capsys.readouterr()
        assert code == (2 if said.err else 0)
        return str(said.err or said.out)

    return run


def test_without_options_it_tells_what_there_is_and_how_to_go_on(finished: Path, shown: Shown) -> None:
    text = shown(finished)
    for wanted in ("finished", "96  ", "pass@1 before the run", "AC ", "not scored", "trained on", "problems-11",
                   "--failed"):  # fmt: skip
        assert wanted in text
    assert "\x1b" not in text


def test_the_commands_that_it_offers_work(finished: Path, shown: Shown) -> None:
    offered = [line.split("   ")[0].split()[3:] for line in shown(finished).splitlines() if line.startswith("overlap ")]
    assert len(offered) == 5
    for words in offered:
        assert "bad input" not in shown(finished, *words), words


@pytest.mark.promise("reasons")
def test_a_sample_says_why_first_then_the_test_with_a_difference_and_the_program(tmp_path: Path, shown: Shown) -> None:
    run = write_rows(tmp_path / "run", kept_row())
    lines = shown(run, "--sample", "g17s2").splitlines()
    assert "g17s2 · train, step 3 · p4" in lines[0]
    assert lines[2] == "why  test 3 of 5: wrong answer: expected `7`, got `8`"
    text = "\n".join(lines)
    order = ["test 3 · wrong answer · exit code 0 · CPU 0.01 s · 9 MiB", "input", "    3 4", "- 7", "+ 8",
             "program (python)", "1  print(8)", "Add two numbers."]  # fmt: skip
    assert sorted(order, key=text.index) == order


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"verdict": "CE", "tests": [], "compile_log": "main.py:1: SyntaxError"}, "what the compiler said"),
        ({"test": {"stderr": "Traceback: boom\n"}}, "Traceback: boom"),
        ({"test": {"got": ""}}, "@ nothing was printed"),
        ({"test": {"got": {"head": "1", "tail": "2", "bytes": 5002, "sha256": "a"}}}, "5,000 bytes left out"),
        ({"program": {"source": "a", "language": "cpp", "files": [["util.h", "int b;"]]}}, "file util.h"),
        ({"program": {"source": "a", "language": "nonesuch"}}, "program (nonesuch)"),
        ({"answer": "x\n" * 500}, "300 more lines"),
    ],
)
def test_a_sample_shows_all_that_is_kept_of_it(
    given: dict[str, Any], wanted: str, tmp_path: Path, shown: Shown
) -> None:
    run = write_rows(tmp_path / "run", kept_row(**given))
    assert wanted in shown(run, "--sample", "g17s2")


@pytest.mark.promise("hostile-text")
def test_what_a_program_printed_cannot_drive_the_terminal(tmp_path: Path) -> None:
    bad = "\x1b]0;title\x07\x1b[31m\r\x9b2J\u202e"
    test = {"got": bad, "stderr": bad, "message": bad, "input": bad, "expected": bad + "!", "verdict": bad}
    row = kept_row(test=test, prompt=bad, answer=bad, prompt_id=bad, verdict=bad, finish=bad, kept_as=[bad], node=bad,
                   failure=bad, compile_log=bad, dropped=bad, parts={bad: 1.0, "b": 2.0}, dialog=bad, turns=2,
                   program={"source": bad, "language": bad, "files": [[bad, bad]]})  # fmt: skip
    run = write_rows(tmp_path / "run", row)
    for only in (SampleFilter(), SampleFilter(group=17), SampleFilter(group=17, sample=2), SampleFilter(failed=True)):
        parts = RunShown(open_samples(str(run)), str(run), only, diff=True).parts()
        assert all(line.isprintable() for line in drawn(parts, console_of(None))), only


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [40, 200])
def test_a_table_fits_the_terminal_and_loses_nothing_of_its_last_column(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    rows = [(n, "problem", "", "漢字 why " * 40) for n in range(3)]
    lines = list(drawn([table(("step", "problem", "empty", "why"), rows, right="step")], console_of(_Terminal())))
    assert max(cell_len(Text.from_ansi(line).plain) for line in lines) <= width
    assert sum(line.count("漢") for line in lines) == 3 * 40
    assert "empty" not in lines[0]


def test_a_group_stands_side_by_side(finished: Path, shown: Shown) -> None:
    text = shown(finished, "--group", "-1", "--step", "0")
    rows = [line for line in text.splitlines() if line.startswith("g-1s")]
    assert len(rows) == 4
    assert "heldout-0" in text
    assert "Write a function f(a, b)" in text


def test_samples_of_a_group_with_the_same_program_share_a_letter(tmp_path: Path, shown: Shown) -> None:
    others = [kept_row(sample=0), kept_row(sample=1, program_sha256="ff"), kept_row(sample=2)]
    rows = [line.split() for line in shown(write_rows(tmp_path / "run", *others), "--group", "17").splitlines()]
    assert [row[6] for row in rows if row and row[0] in ("g17s0", "g17s2")] == ["a", "a"]


def test_a_group_that_was_not_kept_is_told_by_its_row(finished: Path, shown: Shown) -> None:
    kept = {json.loads(line)["group"] for line in (finished / "trajectories.jsonl").read_text().splitlines()}
    lost = next(group for group in range(24) if group not in kept)
    assert "its samples were not kept (run.samples=some)" in shown(finished, "--group", str(lost))


def test_what_failed_is_listed_with_the_reason_newest_first(tmp_path: Path, shown: Shown) -> None:
    rows = [kept_row(step=step, verdict=verdict) for step in (1, 2) for verdict in ("WA", "AC")]
    text = shown(write_rows(tmp_path / "run", *rows), "--failed")
    assert "2 kept samples that did not pass, newest first" in text
    assert [line.split()[0] for line in text.splitlines()[2:4]] == ["2", "1"]
    assert "expected `7`, got `8`" in text
    assert "+ 8" in shown(tmp_path / "run", "--failed", "--diff")


def test_the_groups_that_were_not_trained_on_are_listed_with_the_reason(tmp_path: Path, shown: Shown) -> None:
    run = made_run(tmp_path / "run", solved=(1.0, 0.5), truncated=(0.0, 0.3))
    rows = [json.loads(line) for line in (run / "groups.jsonl").read_text().splitlines()]
    dropped = [row for row in rows if row["split"] == "train" and row["dropped"]]
    text = shown(run, "--dropped")
    assert f"{len(dropped)} groups not trained on, newest first" in text
    found = [line.split()[:3] for line in text.splitlines() if "equal rewards" in line]
    assert found == [[str(row["step"]), str(row["group"]), row["prompt_id"]] for row in reversed(dropped)]
    assert "overlap show" in text.splitlines()[-1]
    assert "more: --limit N" in shown(run, "--dropped", "--limit", "1")
    assert "--step=99: has no kept samples" in shown(run, "--dropped", "--step", "99")
    mixed = [kept_row(sample=s, verdict=v) for s, v in ((0, "AC"), (1, "WA"))]
    assert shown(write_rows(tmp_path / "mixed", *mixed), "--dropped") == "every group was trained on\n"


def test_the_outcomes_of_a_run_are_those_of_its_training_samples(tmp_path: Path, shown: Shown) -> None:
    run = made_run(tmp_path / "run", steps=2, truncated=(0.6, 0.6), failed=0.2)
    text = shown(run)
    told = next(line for line in text.splitlines() if line.startswith("verdicts"))
    assert "no program" in told
    assert "not scored" in told
    assert sum(map(int, re.findall(r"\b\d+\b", told))) == 2 * 4 * 4


def test_a_run_reached_what_its_page_says(tmp_path: Path, shown: Shown) -> None:
    run = made_run(tmp_path / "run", steps=2, failed=0.2)
    lines = [" ".join(line.split()) for line in shown(run).splitlines()]
    for card in cards(load_run(run)):
        assert " ".join(card) in lines


@pytest.mark.parametrize("words", [(), ("--step", "2"), ("--step", "2", "--group", "7")])
def test_the_sample_that_is_offered_is_one_that_did_not_pass(
    words: tuple[str, ...], tmp_path: Path, shown: Shown
) -> None:
    rows = [kept_row(step=2, group=7, sample=s, verdict=v, reward=r) for s, v, r in
            ((0, "AC", 1.0), (1, "WA", 0.0), (2, "AC", 1.0))]  # fmt: skip
    last = [line for line in shown(write_rows(tmp_path / "run", *rows), *words).splitlines() if "--sample" in line]
    assert "s1" in last[0].split("--sample ")[1].split()[0] if words != ("--step", "2") else not last


def test_evaluations_and_problems_are_shown_by_themselves(finished: Path, shown: Shown) -> None:
    assert "6 groups after step 6" in shown(finished, "--eval")
    assert "6 groups after step 0" in shown(finished, "--eval", "--step", "0")
    text = shown(finished, "--problem", "heldout-3")
    assert [line.split()[0] for line in text.splitlines()[2:6]] == ["0e", "2e", "4e", "6e"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--step", "99"], "--step=99: has no kept samples; there are 0 to 6"),
        (["--step", "2", "--group", "999"], "--group=999: has no kept samples of step 2; there are "),
        (["--sample", "g-1s9"], "--sample=9: has no kept samples of group -1; there are 0 to 3"),
        (["--problem", "heldout-33"], "near it: heldout-3"),
        (["--problem", "zzz"], "for instance heldout-0"),
        (["--sample", "17"], "needs its group: write g17s17, or --group 17 as well"),
        (["--sample", "what"], "names no sample"),
        (["--sample", "g3s1", "--group", "4"], "is of another group than --group 4"),
        (["--diff", "--step", "1"], "--diff=True: shows the failing tests of samples: add --failed, --group 17"),
        (["--eval", "--dropped"], "--dropped=True: is of training"),
    ],
)
def test_a_wrong_name_is_one_line_with_what_is_near(words: list[str], said: str, finished: Path, shown: Shown) -> None:
    text = shown(finished, *words)
    assert said in text
    assert text.count("\n") == 1


def test_a_file_of_answers_is_shown_like_a_run(tmp_path: Path, shown: Shown) -> None:
    """Answers without a judge are solved from a reward of 1 on, as in a run."""
    rows = [kept_row(sample=n, verdict=None, reward=reward) for n, reward in enumerate((1.5, 0.9, None))]
    answers = write_rows(tmp_path / "run", *rows, kept_row(group=18)) / "trajectories.jsonl"
    answers = answers.rename(tmp_path / "answers.jsonl")
    assert "4 samples of 2 groups" in shown(answers)
    assert "expected `7`, got `8`" in shown(answers, "--failed")
    first, _ = [line.split() for line in shown(answers).splitlines() if " p4 " in line]
    assert first[2:5] == ["3", "1", "1.2"]


def test_a_run_without_samples_says_so(tmp_path: Path, shown: Shown) -> None:
    run = write_rows(tmp_path / "run", config="run: {samples: none}\n")
    assert "no samples are kept here" in shown(run)
    assert "run.samples=none" in shown(run, "--failed")


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "~nobody-at-all/x", ""])
def test_a_name_that_no_file_system_takes_is_bad_input(name: str, tmp_path: Path, shown: Shown) -> None:
    assert shown(name).startswith("overlap: bad input: RUN=")
    write_rows(tmp_path / "first")
    assert f"did you mean {tmp_path / 'first'}?" in shown(tmp_path / "frist")
    assert "is missing" in shown(tmp_path / "quite-another")


HOSTILE = "a b\x1b[31m\u202e\nforged line"


def test_a_run_whose_name_a_shell_or_a_terminal_would_take_apart_is_shown_whole_and_quoted(
    tmp_path: Path, shown: Shown
) -> None:
    run = write_rows(tmp_path / HOSTILE, kept_row(prompt_id=HOSTILE))
    (run / "summary.json").write_text(json.dumps({"exit": HOSTILE}))
    for flags in ([], ["--step", "3"], ["--group", "17"], ["--sample", "g17s2"], ["--problem", HOSTILE]):
        text = shown(run, *flags)
        assert not any(c in text for c in "\x1b\u202e"), flags
        assert not any(line.startswith("forged") for line in text.splitlines()), flags
    assert f"overlap show '{tmp_path}/a b" in shown(run)
