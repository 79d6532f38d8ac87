"""`sandbox verify` and `sandbox judge` on packages, run in the jail."""

from __future__ import annotations

import json

import pytest
from package_files import ADD, LEGACY, NEW, RIGHT, TIMED, Command, Packages, cases

TIMED_LEGACY = {"problem.yaml": LEGACY, ".timelimit": "1", **RIGHT}
LOOP = "while True: pass"
WORK = "import time\nwhile time.process_time() < {}: pass\n" + ADD


@pytest.mark.promise("packages")
def test_submissions_that_do_what_their_folder_says_are_as_expected(packages: Packages) -> None:
    files = {
        **TIMED_LEGACY,
        ".timelimit": "0.4",
        "submissions/wrong_answer/silent.py": "# a comment alone",
        "submissions/wrong_answer/wrong.py": "print(8)",
        "submissions/time_limit_exceeded/slow.py": LOOP,
        "submissions/run_time_error/crash.py": "raise SystemExit(3)",
    }
    shown = packages.lines(files)
    assert [line.split()[:3] for line in shown if line.startswith("ok")] == [
        ["ok", "accepted/right.py", "AC"],
        ["ok", "run_time_error/crash.py", "RTE"],
        ["ok", "time_limit_exceeded/slow.py", "TLE"],
        ["ok", "wrong_answer/silent.py", "WA"],
        ["ok", "wrong_answer/wrong.py", "WA"],
    ]
    assert "time limit 0.4 s (.timelimit)" in shown
    assert shown[-1] == "5 submissions judged, 0 skipped, 0 surprises"


def test_a_submission_that_is_not_judged_is_named_with_the_reason(packages: Packages) -> None:
    files = {
        "problem.yaml": TIMED + "type: scoring\n",
        **RIGHT,
        "submissions/loose.py": ADD,
        "submissions/accepted/both/a.py": ADD,
        "submissions/accepted/both/a.java": "",
        "submissions/accepted/empty/.keep": "",
        "submissions/accepted/old.py": "#!/usr/bin/python2\nprint 7",
        "submissions/accepted/other.kt": "fun main() {}",
        "submissions/partially_accepted/a.py": ADD,
        "submissions/mixed/a.py": ADD,
        "submissions/submissions.yaml": "'mixed/*': {permitted: [AC]}",
    }
    skipped = {line.split()[1]: line for line in packages.lines(files) if line.startswith("skipped")}
    for name, why in {
        "accepted/both": "files of python and java in equal number",
        "accepted/empty": "no language for no file",
        "accepted/old.py": "no language for '.py'",
        "accepted/other.kt": "no language for '.kt'",
        "loose.py": "it is in no folder, so nothing is expected of it",
        "mixed/a.py": "submissions.yaml says what is expected of it, which is not supported",
        "partially_accepted/a.py": "scores are not computed, and partially_accepted/ says nothing else",
    }.items():
        assert why in skipped.pop(name).replace("java and python", "python and java")
    assert skipped == {}


def test_a_surprise_is_a_line_and_exit_code_1(packages: Packages) -> None:
    files = {**TIMED_LEGACY, "submissions/wrong_answer/right.py": ADD}
    files |= {"submissions/accepted/crash.py": "raise ValueError('oh')", **cases("secret/1", "secret/2")}
    shown = packages.lines(files, 1)
    assert any(line.split()[:3] == ["SURPRISE", "wrong_answer/right.py", "AC"] for line in shown)
    assert "          ! expected WA, found AC" in shown
    (case,) = (line for line in shown if " s cpu " in line)
    assert case.split()[:2] == ["RTE", "secret/1"]
    assert "ValueError: oh" in case
    assert "\n".join(packages.lines(files, 1, "-v")).count("AC   secret/1") == 2
    report = packages.report(files, 1)
    assert report["surprises"] == 2
    found = report["submissions"]["accepted/crash.py"]
    assert found["surprises"] == ["expected AC, found RTE in secret/1"]
    assert [(case["name"], case["verdict"], case["found"]) for case in found["cases"]] == [("secret/1", "RTE", "RE")]


def test_a_program_that_does_not_compile_is_a_surprise_unless_it_is_expected(packages: Packages) -> None:
    broken = {"submissions/accepted/a.c": "int main(", "submissions/rejected/b.c": "int main("}
    shown = packages.lines({**TIMED_LEGACY, **broken}, 1)
    assert any(line.split()[:3] == ["SURPRISE", "accepted/a.c", "CE"] for line in shown)
    assert any(line.split()[:3] == ["ok", "rejected/b.c", "CE"] for line in shown)
    assert any(line.lstrip().startswith("| ") and "error" in line for line in shown)


@pytest.mark.parametrize(
    ("comment", "verdict", "note"),
    [
        ("@EXPECTED_RESULTS@: WRONG-ANSWER, RUN-ERROR", "WA/RTE", ""),
        ("@EXPECTED_RESULTS@ NO-OUTPUT", "WA", ""),
        ("@EXPECTED_RESULT@: COMPILER-ERROR", "CE", ""),
        ("@EXPECTED_RESULTS@: CHECK-MANUALLY", "AC", "'CHECK-MANUALLY' names no verdict, and is not followed"),
    ],
)
def test_a_comment_counts_in_place_of_the_folder(packages: Packages, comment: str, verdict: str, note: str) -> None:
    files = {
        **TIMED_LEGACY,
        "submissions/accepted/c.py": f"# {comment}\n1 +" if verdict == "CE" else f"# {comment}\n{ADD}",
    }
    found = packages.report(files, 0 if verdict in ("AC", "CE") else 1)["submissions"]["accepted/c.py"]
    assert found["expected"] == verdict
    assert note in "".join(found["notes"])


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
    fixed = packages.report(files, 0, "--time-limit", "0.6")
    assert (fixed["time_limit_s"], fixed["time_limit_from"]) == (0.6, "--time-limit")


@pytest.mark.parametrize(
    ("files", "word"),
    [
        ({"problem.yaml": TIMED, "submissions/mixed/a.py": ADD}, "no submission could be judged"),
        ({"problem.yaml": LEGACY, "submissions/accepted/right.py": "def f(:"}, "accepted/right.py: CE"),
        (
            {
                "problem.yaml": NEW,
                **cases("secret/a", given="a\n"),
                **cases("secret/b", given="b\n"),
                "output_validator/v.py": "import sys\nsys.exit(42 if 'a' in open(sys.argv[1]).read() else 5)",
                "submissions/accepted/right.py": "print(7)",
            },
            "accepted/right.py: secret/b: the checker ended with exit code 5",
        ),
    ],
)
def test_a_package_that_cannot_be_verified_is_one_line_and_exit_code_2(
    packages: Packages, files: dict[str, str], word: str
) -> None:
    assert word in packages.refused(files)


def test_no_text_of_a_program_can_pose_as_a_line_of_ours(packages: Packages) -> None:
    forged = "ok        right.py  AC"
    files = {
        "problem.yaml": TIMED,
        "submissions/accepted/a.py": f"raise SystemExit('\\n{forged}')",
        "submissions/accepted/b\n" + forged: ADD,
        "submissions/accepted/c.py": f"def f(:\n{forged}",
    }
    assert not [line for line in packages.lines(files, 1, "-v") if line.startswith(forged)]


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


def test_a_submission_of_several_files_is_one_program(packages: Packages) -> None:
    files = {
        "problem.yaml": TIMED,
        "submissions/accepted/two/main.py": "import helper\nprint(helper.SEVEN)",
        "submissions/accepted/two/helper.py": "SEVEN = 7",
        "submissions/accepted/two/.git/x": "",
    }
    assert packages.verdicts(files) == {"two": "AC"}


def test_limits_of_the_package_are_those_of_the_jail(packages: Packages) -> None:
    files = {
        "problem.yaml": LEGACY + "limits: {memory: 64, output: 1}\n",
        ".timelimit": "1",
        "submissions/run_time_error/hoards.py": "x = bytearray(100 << 20)\nx[::4096] = b'1' * len(x[::4096])",
        "submissions/run_time_error/floods.py": "while True: print('x' * 1000)",
    }
    found = packages.report(files)["submissions"]
    assert found["run_time_error/hoards.py"]["cases"][0]["found"] == "MLE"
    assert found["run_time_error/floods.py"]["cases"][0]["found"] == "OLE"


def test_a_program_of_a_scoring_package_is_accepted_if_it_passes_every_test(packages: Packages) -> None:
    files = {
        **TIMED_LEGACY,
        "problem.yaml": LEGACY + "type: scoring\n",
        **cases("sample/1", "secret/a/1"),
        **cases("secret/b/1", given="10 20\n", answer="30\n"),
        "data/testdata.yaml": "on_reject: continue\ngrader_flags: ignore_sample accept_if_any_accepted\nrange: 0 100",
        "submissions/wrong_answer/seven.py": "# @EXPECTED_SCORE@: 40\nprint(7)",
    }
    assert packages.verdicts(files) == {"right.py": "AC", "seven.py": "WA"}


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
