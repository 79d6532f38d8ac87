"""`sandbox verify` and `sandbox judge` on packages, run in the jail."""

from __future__ import annotations

import json

import pytest
from package_files import ADD, LEGACY, NEW, RIGHT, TIMED, Command, Packages, cases

TIMED_LEGACY = {"problem.yaml": LEGACY, ".timelimit": "1", **RIGHT}
LOOP = "while True: pass"
WORK = "import time\nwhile time.process_time() < {}: pass\n" + ADD


@pytest.mark.promise("packages")
def test_submissions_that_do_what_is_said_of_them_are_as_expected(packages: Packages) -> None:
    files = {
        **TIMED_LEGACY,
        ".timelimit": "0.4",
        "submissions/wrong_answer/wrong.py": "print(8)",
        "submissions/time_limit_exceeded/slow.py": LOOP,
        "submissions/run_time_error/crash.py": "raise SystemExit(3)",
        "submissions/accepted/other.kt": "fun main() {}",
        "submissions/mixed/unknown.py": ADD,
    }
    shown = packages.lines(files)
    assert [line.split()[:3] for line in shown if line.startswith("ok")] == [
        ["ok", "accepted/right.py", "AC"],
        ["ok", "run_time_error/crash.py", "RTE"],
        ["ok", "wrong_answer/wrong.py", "WA"],
        ["ok", "time_limit_exceeded/slow.py", "TLE"],
    ]
    assert "time limit 0.4 s (.timelimit)" in shown
    assert [line for line in shown if line.startswith("skipped")] == [
        "skipped   mixed/unknown.py             nobody says what is expected of submissions/mixed/",
        "skipped   accepted/other.kt            no supported language has the suffix '.kt'",
    ]
    assert shown[-1] == "4 submissions judged, 2 skipped, 0 surprises"


def test_a_surprise_is_told_in_a_line_and_by_the_exit_code(packages: Packages) -> None:
    files = {**TIMED_LEGACY, "submissions/wrong_answer/right.py": ADD}
    shown = "\n".join(packages.lines(files, 1, "-v"))
    assert "SURPRISE  wrong_answer/right.py  AC" in shown
    assert "! expected WA, found AC (submissions/wrong_answer/)" in shown
    assert shown.count("AC   secret/1") == 2
    report = packages.report(files, 1)
    assert report["surprises"] == 1
    found = report["submissions"]["wrong_answer/right.py"]
    assert found["surprises"] == ["expected WA, found AC (submissions/wrong_answer/)"]
    assert [(case["name"], case["verdict"]) for case in found["cases"]] == [("secret/1", "AC")]


def test_the_time_limit_is_made_of_the_slowest_accepted_submission(packages: Packages) -> None:
    files = {
        "problem.yaml": NEW + "limits: {time_resolution: 0.1, time_multipliers: {ac_to_time_limit: 2}}\n",
        "submissions/accepted/a.py": ADD,
        "submissions/accepted/b.py": WORK.format(0.22),
        "submissions/wrong_answer/c.py": "print(8)",
        "submissions/time_limit_exceeded/slow.py": LOOP,
    }
    report = packages.report(files)
    slowest = report["submissions"]["accepted/b.py"]["slowest_s"]
    assert report["time_limit_s"] - 0.1 < 2 * slowest <= report["time_limit_s"]
    assert report["time_limit_from"].startswith("accepted/b.py took 0.")
    assert report["submissions"]["time_limit_exceeded/slow.py"]["slowest_s"] >= 1.5 * report["time_limit_s"]
    fixed = packages.report(files, 0, "--time-limit", "0.6")
    assert (fixed["time_limit_s"], fixed["time_limit_from"]) == (0.6, "--time-limit")


def test_what_a_little_more_time_would_change_is_noted(packages: Packages) -> None:
    files = {**TIMED_LEGACY, ".timelimit": "0.5", "submissions/time_limit_exceeded/near.py": WORK.format(0.6)}
    found = packages.report(files)["submissions"]["time_limit_exceeded/near.py"]
    assert (found["verdict"], found["cases"][0]["found"]) == ("TLE", "AC")
    assert "less than 2 times the limit" in found["notes"][0]


VALIDATOR = """
import sys
given, answer, feedback, *more = sys.argv[1:]
said = sys.stdin.read().split()
want = open(answer).read().split()
open(feedback + "judgemessage.txt", "w").write(f"said {said}, wanted {want}, was given {more}")
sys.exit(42 if said == want else 43)
"""


def test_a_validator_gets_its_arguments_and_its_message_is_shown(packages: Packages) -> None:
    files = {
        **TIMED_LEGACY,
        "problem.yaml": LEGACY + "validation: custom\nvalidator_flags: strict 5\n",
        "output_validators/v.py": VALIDATOR,
        "submissions/wrong_answer/w.py": "print('\\x1b[31m8')",
    }
    shown = "\n".join(packages.lines(files, 0, "-vv"))
    assert "judgemessage.txt: said ['7'], wanted ['7'], was given ['strict', '5']" in shown
    assert "\x1b" not in shown
    feedback = packages.report(files)["submissions"]["wrong_answer/w.py"]["cases"][0]["feedback"]
    assert "wanted ['7']" in feedback["judgemessage.txt"]


INTERACTOR = """
import sys
number = int(open(sys.argv[1]).read())
for turn in range(10):
    guess = int(input())
    if guess == number:
        print("right", flush=True)
        sys.exit(42)
    print("low" if guess < number else "high", flush=True)
sys.exit(43)
"""
SEARCH = """
low, high = 1, 100
while True:
    middle = (low + high) // 2
    print(middle, flush=True)
    said = input()
    if said == "right": break
    low, high = (middle + 1, high) if said == "low" else (low, middle - 1)
"""


@pytest.mark.promise("packages")
@pytest.mark.parametrize("text", [LEGACY + "validation: custom interactive\n", NEW + "type: interactive\n"])
def test_an_interactive_package(packages: Packages, text: str) -> None:
    folder = "output_validators" if text.startswith(LEGACY) else "output_validator"
    files = {
        "problem.yaml": text,
        ".timelimit": "1",
        **cases("secret/1", given="37\n"),
        **cases("secret/2", given="100\n"),
        f"{folder}/v.py": INTERACTOR,
        "submissions/accepted/search.py": SEARCH,
        "submissions/wrong_answer/same.py": SEARCH.replace("(low + high) // 2", "37"),
    }
    assert packages.verdicts(files) == {"search.py": "AC", "same.py": "WA"}


PASSES = """
import os, sys
given, answer, feedback = sys.argv[1:]
state = feedback + "state"
said = int(sys.stdin.read())
if said != 2 * int(open(given).read()): sys.exit(43)
count = int(open(state).read()) if os.path.exists(state) else 0
open(state, "w").write(str(count + 1))
if count < 2: open(feedback + "nextpass.in", "w").write(f"{said}\\n")
sys.exit(42)
"""


@pytest.mark.promise("packages")
def test_a_multi_pass_package(packages: Packages) -> None:
    files = {
        "problem.yaml": NEW + "type: multi-pass\nlimits: {time_limit: 1, validation_passes: 3}\n",
        **cases("secret/1", given="1\n"),
        "output_validator/v.py": PASSES,
        "submissions/accepted/a.py": "print(2 * int(input()))",
        "submissions/wrong_answer/w.py": "n = int(input())\nprint(2 * n + (n == 4))",
    }
    report = packages.report(files)
    assert report["submissions"]["wrong_answer/w.py"]["cases"][0]["message"] == "run 3: wrong, says the checker"
    shown = packages.lines(files | {"problem.yaml": TIMED + "type: multi-pass\n"}, 1)
    assert any("the checker asked for more than the problem's 2 runs" in line for line in shown)


SCORING = {
    **cases("sample/1", "secret/a/1", "secret/a/2", "secret/b/1"),
    **cases("secret/b/2", given="10 20\n", answer="30\n"),
}


def test_old_scores_by_groups(packages: Packages, command: Command) -> None:
    files = {
        **TIMED_LEGACY,
        "problem.yaml": LEGACY + "type: scoring\n",
        **SCORING,
        "data/testdata.yaml": "on_reject: continue\ngrader_flags: ignore_sample\nrange: 0 100",
        "data/secret/testdata.yaml": "grader_flags: first_error accept_if_any_accepted",
        "data/secret/a/testdata.yaml": "on_reject: break\ngrader_flags: min\naccept_score: 40",
        "data/secret/b/testdata.yaml": "on_reject: break\ngrader_flags: min\naccept_score: 60",
        "submissions/partially_accepted/seven.py": "# @EXPECTED_GRADES@ AC WA\nprint(7)",
        "submissions/wrong_answer/none.py": "print(0)",
    }
    report = packages.report(files)
    assert {name: each["score"] for name, each in report["submissions"].items()} == {
        "accepted/right.py": 100, "partially_accepted/seven.py": 40, "wrong_answer/none.py": 0,
    }  # fmt: skip
    assert len(report["submissions"]["wrong_answer/none.py"]["cases"]) == 3  # one of each group
    package = packages.write(files)
    shown = command(0, "judge", package, package / "submissions/partially_accepted/seven.py").out
    assert "AC 40" in shown
    assert "WA 0       secret/b" in shown


def test_a_score_that_a_group_cannot_have_is_a_surprise(packages: Packages) -> None:
    files = {
        **TIMED_LEGACY,
        "problem.yaml": LEGACY + "type: scoring\n",
        **cases("secret/a/1", "secret/a/2"),
        "data/secret/a/testdata.yaml": "accept_score: 60\nrange: 0 100",
    }
    shown = packages.lines(files, 1)
    assert any("! a score of 120 in data/secret/a is out of its range, 0 to 100" in line for line in shown)


def test_new_scores_by_groups_with_points_of_the_validator(packages: Packages) -> None:
    validator = VALIDATOR.replace(
        "sys.exit(42",
        "open(feedback + 'score_multiplier.txt', 'w').write('0.5') if more and said == want else 0\nsys.exit(42",
    )
    files = {
        "problem.yaml": TIMED + "type: scoring\n",
        **SCORING,
        "output_validator/v.py": validator,
        "data/secret/a/test_group.yaml": "max_score: 40",
        "data/secret/b/test_group.yaml": "max_score: 60\nscore_aggregation: sum",
        "data/secret/b/1.yaml": "output_validator_args: [half]",
        "submissions/submissions.yaml": "accepted: {score: 85}\n'rejected/*': {score: [55, 55], secret/a: {score: 40}}",
        **RIGHT,
        "submissions/rejected/seven.py": "print(7)",
    }
    assert packages.verdicts(files) == {"right.py": "AC", "seven.py": "WA"}


def test_a_custom_grader_runs_in_a_jail(packages: Packages) -> None:
    grader = "import sys\nlines = sys.stdin.read().split()\nprint('AC', 10 * lines[::2].count('AC') + int(sys.argv[1]))"
    files = {
        **TIMED_LEGACY,
        "problem.yaml": LEGACY + "type: scoring\n",
        **SCORING,
        "data/testdata.yaml": "on_reject: continue\ngrading: custom\ngrader_flags: '3'\nrange: 0 23",
        "graders/g.py": grader,
    }
    score = packages.report(files)["submissions"]["accepted/right.py"]["score"]
    assert score == 23  # sample and secret, and the flag


def test_answers_may_be_submitted_without_a_program(packages: Packages, command: Command) -> None:
    files = {
        "problem.yaml": TIMED + "type: submit-answer\n",
        **cases("secret/1"),
        **cases("secret/2", answer="Nine\n"),
        "submissions/accepted/all/1.out": "7",
        "submissions/accepted/all/2.out": "NINE",
        "submissions/accepted/by_path/secret/1.ans": "7",
        "submissions/accepted/by_path/secret/2.ans": "nine",
        "submissions/wrong_answer/one/1.out": "7",
        "submissions/wrong_answer/one/3.out": "7",
    }
    assert packages.verdicts(files) == {"all": "AC", "by_path": "AC", "one": "WA"}
    notes = packages.report(files)["submissions"]["wrong_answer/one"]["notes"]
    assert notes == ["has no answer to secret/2", "3.out answers no test case"]
    package = packages.write(files)
    command(1, "judge", package, package / "submissions/wrong_answer/one")


def test_cases_have_arguments_and_files_and_submissions_several_files(packages: Packages) -> None:
    files = {
        "problem.yaml": TIMED,
        **cases("secret/1", answer="a b words 10\n"),
        "data/secret/test_group.yaml": "args: [a, b]",
        "data/secret/1.files/words.txt": "words",
        "include/python3/const.py": "TEN = 10",
        "submissions/accepted/two/main.py": "import const, helper\nprint(helper.text(), const.TEN)",
        "submissions/accepted/two/helper.py": "import sys\n"
        "def text(): return ' '.join(sys.argv[1:] + [open('words.txt').read()])",
        "submissions/accepted/named/a.py": "print(0)",
        "submissions/accepted/named/z.py": "import sys\nprint(*sys.argv[1:], open('words.txt').read(), 10)",
        "submissions/submissions.yaml": "accepted/named: {entrypoint: z.py, language: python3}",
    }
    assert packages.verdicts(files) == {"two": "AC", "named": "AC"}


def test_limits_of_the_package_are_those_of_the_jail(packages: Packages) -> None:
    files = {
        "problem.yaml": LEGACY + "limits: {memory: 64, output: 1, code: 1}\n",
        ".timelimit": "1",
        "submissions/run_time_error/hoards.py": "x = bytearray(100 << 20)\nx[::4096] = b'1' * len(x[::4096])",
        "submissions/run_time_error/floods.py": "while True: print('x' * 1000)",
        "submissions/rejected/long.py": "#" * 1024 + "\n" + ADD,
    }
    found = packages.report(files)["submissions"]
    assert found["run_time_error/hoards.py"]["cases"][0]["found"] == "MLE"
    assert found["run_time_error/floods.py"]["cases"][0]["found"] == "OLE"
    assert "longer than the code limit of 1024" in found["rejected/long.py"]["notes"][0]


def test_judge_takes_a_package_for_a_problem(packages: Packages, command: Command) -> None:
    package = packages.write({"problem.yaml": LEGACY, **RIGHT, "mine.py": "print(8)", "mine.kt": ""})
    shown = command(0, "judge", package, package / "submissions/accepted/right.py").out
    assert "AC  1 of 1 cases that ran, time limit 1 s (accepted/right.py took 0." in shown
    found = json.loads(command(1, "judge", package, package / "mine.py", "--json", "--time-limit", "2").out)
    assert (found["verdict"], found["time_limit_s"]) == ("WA", 2)
    for name, word in (("mine.kt", "'.kt'"), ("absent.py", "absent.py")):
        assert word in command(2, "judge", package, package / name).err


def test_the_first_failed_case_of_a_submission_is_shown_when_asked(packages: Packages, command: Command) -> None:
    package = packages.write({"problem.yaml": TIMED, **RIGHT, **cases("secret/1", "secret/2"), "mine.py": "print(8)"})
    shown = command(1, "judge", package, package / "mine.py", "--diff").out.splitlines()
    assert {"input", "    3 4", "- 7", "+ 8"} <= set(shown)
    assert "    3 4" not in command(1, "judge", package, package / "mine.py").out
