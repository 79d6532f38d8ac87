"""`sandbox verify` and `sandbox judge` on packages, run in the jail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from package_files import ADD, LEGACY, NEW, cases, write_package
from toolchains import need

from sandbox.cli import main

RIGHT = {"submissions/accepted/right.py": ADD}
LIMIT = {".timelimit": "1"}
LOOP = "while True: pass"


def verified(capsys: pytest.CaptureFixture[str], package: Path, code: int, *more: str) -> dict[str, Any]:
    """What --json says, by submission."""
    found = main(["verify", "--json", str(package), *more])
    shown = capsys.readouterr()
    assert found == code, shown
    report: dict[str, Any] = json.loads(shown.out)
    return report | {"submissions": {each["name"]: each for each in report["submissions"]}}


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    return {name.rpartition("/")[2]: each["verdict"] for name, each in report["submissions"].items()}


def test_submissions_that_do_what_is_said_of_them_are_as_expected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "problem.yaml": LEGACY,
        **LIMIT,
        **RIGHT,
        "submissions/wrong_answer/wrong.py": "print(8)",
        "submissions/time_limit_exceeded/slow.py": LOOP,
        "submissions/run_time_error/crash.py": "raise SystemExit(3)",
        "submissions/accepted/other.kt": "fun main() {}",
        "submissions/mixed/unknown.py": ADD,
    }
    package = write_package(tmp_path, files)
    assert main(["verify", str(package)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in shown if line.startswith("ok")] == [
        ["ok", "accepted/right.py", "AC"],
        ["ok", "run_time_error/crash.py", "RTE"],
        ["ok", "wrong_answer/wrong.py", "WA"],
        ["ok", "time_limit_exceeded/slow.py", "TLE"],
    ]
    assert "time limit 1 s (.timelimit)" in shown
    assert [line for line in shown if line.startswith("skipped")] == [
        "skipped   mixed/unknown.py             nobody says what is expected of submissions/mixed/",
        "skipped   accepted/other.kt            no supported language has the suffix '.kt'",
    ]
    assert shown[-1] == "4 submissions judged, 2 skipped, 0 surprises"


def test_a_surprise_is_told_in_a_line_and_by_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"problem.yaml": LEGACY, **LIMIT, **RIGHT, "submissions/wrong_answer/right.py": ADD}
    package = write_package(tmp_path, files)
    assert main(["verify", "-v", str(package)]) == 1
    shown = capsys.readouterr().out
    assert "SURPRISE  wrong_answer/right.py  AC" in shown
    assert "! expected WA, found AC (submissions/wrong_answer/)" in shown
    assert shown.count("AC   secret/1") == 2
    report = verified(capsys, package, 1)
    assert report["surprises"] == 1
    found = report["submissions"]["wrong_answer/right.py"]
    assert found["surprises"] == ["expected WA, found AC (submissions/wrong_answer/)"]
    assert [(case["name"], case["verdict"]) for case in found["cases"]] == [("secret/1", "AC")]


@pytest.mark.parametrize(
    ("text", "program", "word"),
    [
        (LEGACY + "color: red", ADD, "unknown key 'color'"),
        (LEGACY + "validation: custom", ADD, "no output_validators/"),
        (LEGACY, "def f(:", "accepted/right.py: does not compile"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, program: str, word: str
) -> None:
    package = write_package(tmp_path, {"problem.yaml": text, "submissions/accepted/right.py": program})
    assert main(["verify", str(package)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("sandbox: error: ")
    assert word in error
    assert error.count("\n") == 1


def test_the_time_limit_is_made_of_the_slowest_accepted_submission(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = "import time\nwhile time.process_time() < {}: pass\n" + ADD
    files = {
        "problem.yaml": NEW + "limits: {time_resolution: 0.1, time_multipliers: {ac_to_time_limit: 2}}\n",
        "submissions/accepted/a.py": ADD,
        "submissions/accepted/b.py": work.format(0.22),
        "submissions/wrong_answer/c.py": "print(8)",
        "submissions/time_limit_exceeded/slow.py": LOOP,
    }
    report = verified(capsys, write_package(tmp_path, files), 0)
    slowest = report["submissions"]["accepted/b.py"]["slowest_s"]
    assert report["time_limit_s"] - 0.1 < 2 * slowest <= report["time_limit_s"]
    assert report["time_limit_from"].startswith("accepted/b.py took 0.")
    assert report["submissions"]["time_limit_exceeded/slow.py"]["slowest_s"] >= 1.5 * report["time_limit_s"]
    fixed = verified(capsys, write_package(tmp_path, files), 0, "--time-limit", "1.5")
    assert (fixed["time_limit_s"], fixed["time_limit_from"]) == (1.5, "--time-limit")


def test_what_a_little_more_time_would_change_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = "import time\nwhile time.process_time() < 0.6: pass\n" + ADD
    files = {"problem.yaml": LEGACY, ".timelimit": "0.5", "submissions/time_limit_exceeded/near.py": work, **RIGHT}
    report = verified(capsys, write_package(tmp_path, files), 0)
    found = report["submissions"]["time_limit_exceeded/near.py"]
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


def test_a_validator_gets_its_arguments_and_its_message_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "problem.yaml": LEGACY + "validation: custom\nvalidator_flags: strict 5\n",
        "output_validators/v.py": VALIDATOR,
        **LIMIT,
        **RIGHT,
        "submissions/wrong_answer/w.py": "print('\\x1b[31m8')",
    }
    package = write_package(tmp_path, files)
    assert main(["verify", "-vv", str(package)]) == 0
    shown = capsys.readouterr().out
    assert "judgemessage.txt: said ['7'], wanted ['7'], was given ['strict', '5']" in shown
    assert "\x1b" not in shown
    feedback = verified(capsys, package, 0)["submissions"]["wrong_answer/w.py"]["cases"][0]["feedback"]
    assert "wanted ['7']" in feedback["judgemessage.txt"]


def test_a_validator_in_cpp_with_a_header_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need("cpp")
    files = {
        "problem.yaml": LEGACY + "validation: custom\n",
        "output_validators/v/validate.cc": '#include "validate.h"\nint main(int n, char **v) { return judge(v); }',
        "output_validators/v/validate.h": "#include <fstream>\n#include <iostream>\nint judge(char **v) {\n"
        "std::ifstream answer(v[2]); int a, b; return answer >> a && std::cin >> b && a == b ? 42 : 43; }",
        **LIMIT,
        **RIGHT,
        "submissions/wrong_answer/w.py": "print(8)",
    }
    assert verified(capsys, write_package(tmp_path, files), 0)["surprises"] == 0


def test_a_validator_that_fails_is_our_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"problem.yaml": LEGACY + "validation: custom\n", "output_validators/v.py": "exit(0)", **LIMIT, **RIGHT}
    assert main(["verify", str(write_package(tmp_path, files))]) == 2
    assert "the checker ended with exit code 0" in capsys.readouterr().err


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


@pytest.mark.parametrize("text", [LEGACY + "validation: custom interactive\n", NEW + "type: interactive\n"])
def test_an_interactive_package(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    folder = "output_validators" if text.startswith(LEGACY) else "output_validator"
    files = {
        "problem.yaml": text,
        **LIMIT,
        **cases("secret/1", given="37\n"),
        **cases("secret/2", given="100\n"),
        f"{folder}/v.py": INTERACTOR,
        "submissions/accepted/search.py": SEARCH,
        "submissions/wrong_answer/same.py": SEARCH.replace("(low + high) // 2", "37"),
    }
    assert verdicts(verified(capsys, write_package(tmp_path, files), 0)) == {"search.py": "AC", "same.py": "WA"}


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


def test_a_multi_pass_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "problem.yaml": NEW + "type: multi-pass\nlimits: {time_limit: 1, validation_passes: 3}\n",
        **cases("secret/1", given="1\n"),
        "output_validator/v.py": PASSES,
        "submissions/accepted/a.py": "print(2 * int(input()))",
        "submissions/wrong_answer/w.py": "n = int(input())\nprint(2 * n + (n == 4))",
    }
    package = write_package(tmp_path, files)
    report = verified(capsys, package, 0)
    assert report["submissions"]["wrong_answer/w.py"]["cases"][0]["message"] == "run 3: wrong, says the checker"
    (package / "problem.yaml").write_text(NEW + "type: multi-pass\nlimits: {time_limit: 1}\n")
    assert main(["verify", str(package)]) == 1
    assert "the checker asked for more than the problem's 2 runs" in capsys.readouterr().out


SCORING = {
    **cases("sample/1", "secret/a/1", "secret/a/2", "secret/b/1"),
    **cases("secret/b/2", given="10 20\n", answer="30\n"),
}


def test_old_scores_by_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "problem.yaml": LEGACY + "type: scoring\n",
        **LIMIT,
        **SCORING,
        "data/testdata.yaml": "on_reject: continue\ngrader_flags: ignore_sample\nrange: 0 100",
        "data/secret/testdata.yaml": "grader_flags: first_error accept_if_any_accepted",
        "data/secret/a/testdata.yaml": "on_reject: break\ngrader_flags: min\naccept_score: 40",
        "data/secret/b/testdata.yaml": "on_reject: break\ngrader_flags: min\naccept_score: 60",
        **RIGHT,
        "submissions/partially_accepted/seven.py": "# @EXPECTED_GRADES@ AC WA\nprint(7)",
        "submissions/wrong_answer/none.py": "print(0)",
    }
    package = write_package(tmp_path, files)
    report = verified(capsys, package, 0)
    assert {name: each["score"] for name, each in report["submissions"].items()} == {
        "accepted/right.py": 100, "partially_accepted/seven.py": 40, "wrong_answer/none.py": 0,
    }  # fmt: skip
    assert len(report["submissions"]["wrong_answer/none.py"]["cases"]) == 3  # one of each group
    assert main(["judge", str(package), str(package / "submissions/partially_accepted/seven.py")]) == 0
    shown = capsys.readouterr().out
    assert "AC 40" in shown
    assert "WA 0       secret/b" in shown


def test_new_scores_by_groups_with_points_of_the_validator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    validator = VALIDATOR.replace(
        "sys.exit(42",
        "open(feedback + 'score_multiplier.txt', 'w').write('0.5') if more and said == want else 0\nsys.exit(42",
    )
    files = {
        "problem.yaml": NEW + "type: scoring\nlimits: {time_limit: 1}\n",
        **SCORING,
        "output_validator/v.py": validator,
        "data/secret/a/test_group.yaml": "max_score: 40",
        "data/secret/b/test_group.yaml": "max_score: 60\nscore_aggregation: sum",
        "data/secret/b/1.yaml": "output_validator_args: [half]",
        "submissions/submissions.yaml": "accepted: {score: 85}\n'rejected/*': {score: [55, 55], secret/a: {score: 40}}",
        **RIGHT,
        "submissions/rejected/seven.py": "print(7)",
    }
    assert verdicts(verified(capsys, write_package(tmp_path, files), 0)) == {"right.py": "AC", "seven.py": "WA"}


def test_a_custom_grader_runs_in_a_jail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grader = "import sys\nlines = sys.stdin.read().split()\nprint('AC', 10 * lines[::2].count('AC') + int(sys.argv[1]))"
    files = {
        "problem.yaml": LEGACY + "type: scoring\n",
        **LIMIT,
        **SCORING,
        "data/testdata.yaml": "on_reject: continue\ngrading: custom\ngrader_flags: '3'\nrange: 0 23",
        "graders/g.py": grader,
        **RIGHT,
    }
    report = verified(capsys, write_package(tmp_path, files), 0)
    assert report["submissions"]["accepted/right.py"]["score"] == 23  # sample and secret, and the flag


def test_answers_may_be_submitted_without_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "problem.yaml": NEW + "type: submit-answer\nlimits: {time_limit: 1}\n",
        **cases("secret/1"),
        **cases("secret/2", answer="Nine\n"),
        "submissions/accepted/all/1.out": "7",
        "submissions/accepted/all/2.out": "NINE",
        "submissions/accepted/by_path/secret/1.ans": "7",
        "submissions/accepted/by_path/secret/2.ans": "nine",
        "submissions/wrong_answer/one/1.out": "7",
    }
    package = write_package(tmp_path, files)
    assert verdicts(verified(capsys, package, 0)) == {"all": "AC", "by_path": "AC", "one": "WA"}
    assert main(["judge", str(package), str(package / "submissions/wrong_answer/one")]) == 1


def test_cases_have_arguments_and_files_and_submissions_several_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "problem.yaml": NEW + "limits: {time_limit: 1}\n",
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
    assert verdicts(verified(capsys, write_package(tmp_path, files), 0)) == {"two": "AC", "named": "AC"}


def test_limits_of_the_package_are_those_of_the_jail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "problem.yaml": LEGACY + "limits: {memory: 64, output: 1, code: 1}\n",
        **LIMIT,
        "submissions/run_time_error/hoards.py": "x = bytearray(100 << 20)\nx[::4096] = b'1' * len(x[::4096])",
        "submissions/run_time_error/floods.py": "while True: print('x' * 1000)",
        "submissions/rejected/long.py": "#" * 1024 + "\n" + ADD,
    }
    report = verified(capsys, write_package(tmp_path, files), 0)
    found = report["submissions"]
    assert found["run_time_error/hoards.py"]["cases"][0]["found"] == "MLE"
    assert found["run_time_error/floods.py"]["cases"][0]["found"] == "OLE"
    assert "longer than the code limit of 1024" in found["rejected/long.py"]["notes"][0]


def test_judge_takes_a_package_for_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = write_package(tmp_path, {"problem.yaml": LEGACY, **RIGHT, "mine.py": "print(8)", "mine.kt": ""})
    assert main(["judge", str(package), str(package / "submissions/accepted/right.py")]) == 0
    assert "AC  1 of 1 cases that ran, time limit 1 s (accepted/right.py took 0." in capsys.readouterr().out
    assert main(["judge", str(package), str(package / "mine.py"), "--json", "--time-limit", "2"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["time_limit_s"]) == ("WA", 2)
    for name, word in (("mine.kt", "'.kt'"), ("absent.py", "absent.py")):
        assert main(["judge", str(package), str(package / name)]) == 2
        assert word in capsys.readouterr().err
    assert main(["judge", str(package), str(package / "mine.py"), "--time-limit", "-1"]) == 2
    assert "--time-limit" in capsys.readouterr().err


def test_a_language_that_the_package_does_not_allow_is_skipped_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"problem.yaml": NEW + "languages: [cpp]\nlimits: {time_limit: 1}\n", **RIGHT}
    package = write_package(tmp_path, files)
    assert main(["verify", str(package)]) == 2
    shown = capsys.readouterr()
    assert "the package allows cpp, not python3" in shown.out
    assert "no submission could be judged" in shown.err


def test_no_text_of_a_program_can_pose_as_a_line_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forged = "ok        accepted/forged.py  AC"
    files = {
        "problem.yaml": LEGACY,
        **LIMIT,
        "submissions/accepted/a.py": f"raise SystemExit('\\n{forged}')",
        "submissions/accepted/b\n" + forged: ADD,
        "submissions/accepted/c.py": f"def f(:\n{forged}",
    }
    assert main(["verify", "-v", str(write_package(tmp_path, files))]) == 1
    assert forged not in capsys.readouterr().out.splitlines()
