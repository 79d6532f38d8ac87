"""Packages in the shapes of other judges' examples: settings, layout, comments and links as there, contents of ours."""

from __future__ import annotations

import os

import pytest
from package_files import NEW, TIMED, Packages, cases

DRAFT = NEW.replace("2025-09", "2023-07-draft")
AGREES = "import sys\nsys.exit(42 if sys.stdin.read().split() == open(sys.argv[2]).read().split() else 43)"
TALKS = "import sys\nprint(open(sys.argv[1]).read(), flush=True)\nsys.exit(42 if input() == '7' else 43)"
TWICE = """
import os, sys
given, answer, feedback, *more = sys.argv[1:]
if not os.path.exists(feedback + "state"):
    open(feedback + "state", "w").close()
    open(feedback + "nextpass.in", "w").write("3 4")
sys.exit(42 if sys.stdin.read().split() == ["7"] and more in ([], ["--say", "of two words"]) else 43)
"""
SCORES = """
import sys
right = sys.stdin.read().split() == ["7"]
open(sys.argv[3] + "score.txt", "w").write(str(99 * right))
sys.exit(42 if right else 43)
"""
ADDS = {
    "submissions/accepted/a.py": "print(sum(map(int, input().split())))",
    "submissions/wrong_answer/w.py": "print(0)",
}
SUBTASKS = {
    **cases("sample/1", "secret/small/1", "secret/large/even/1"),
    "data/testdata.yaml": "on_reject: continue\ngrader_flags: sum, ignore_sample\n",
    "data/secret/small/testdata.yaml": "accept_score: 30\ngrader_flags: min\n",
}


@pytest.mark.parametrize(
    ("text", "files", "last"),
    [
        pytest.param(
            "name: A\n",
            {
                "submissions/multiple/log.c": "/* @EXPECTED_RESULTS@: CHECK-MANUALLY */",
                "submissions/compiler_error/a b/c#.c": "/* @EXPECTED_RESULTS@: NONE-SUBMIT-FAILS */",
                "submissions/compiler_error/c.py": "# @EXPECTED_RESULTS@: COMPILER-ERROR\n1 +",
                "submissions/multiple/two/said.txt": "@EXPECTED_RESULTS@: CORRECT, NO-OUTPUT\n",
                "submissions/multiple/two/a.py": "# The @EXPECTED_RESULTS@: tag is in said.txt\n",
                "submissions/no_output/n.py": "# @EXPECTED_RESULTS@: NO-OUTPUT\n",
                "input_validator/any/build": "",
                "answer_validator/a.py": "",
                "submissions.json": "{}",
            },
            "5 submissions judged, 2 skipped, 0 surprises",
            id="DOMjudge, comments",
        ),
        pytest.param(
            "name: A\nvalidation: custom interactive\nvalidator_flags: -u a\nvalidator_args: -u a\n",
            {
                "output_validators/run/v.py": TALKS,
                "submissions/mixed/m.py": "'''\nhow to use the @EXPECTED_RESULTS@ tag\n"
                "@EXPECTED_RESULTS@: CORRECT, TIMELIMIT\n'''\nprint(7)",
            },
            "3 submissions judged, 0 skipped, 0 surprises",
            id="DOMjudge, interactive",
        ),
        pytest.param(
            "name: A\nvalidation: custom multi-pass\nlimits: {validation_passes: 26}\n",
            {
                **cases("secret/1", "secret/with_spaces/1"),
                "data/secret/with_spaces/testdata.yaml": 'output_validator_flags: --say "of two words"',
                "output_validator/v.py": TWICE,
            },
            "2 submissions judged, 0 skipped, 0 surprises",
            id="DOMjudge, multi-pass",
        ),
        pytest.param(
            "name: A\ntype: scoring\nvalidation: custom\n",
            {**cases("secret/main/1"), "output_validators/v.py": SCORES},
            "2 submissions judged, 0 skipped, 0 surprises",
            id="DOMjudge, a score with every verdict",
        ),
        pytest.param(
            "name: A\ntype: scoring\n", SUBTASKS, "2 submissions judged, 0 skipped, 0 surprises", id="subtasks"
        ),
        pytest.param(
            TIMED + "constants: {A: {value: 5, INT: 5, WORD: five}, B: 6}\n",
            {
                "output_validator/v.py": f"{AGREES} # {{{{A.WORD}}}}",
                "submissions/accepted/c.py": "print({{A}} + {{A.INT}} - 3)",
            },
            "3 submissions judged, 0 skipped, 0 surprises",
            id="BAPCtools, constants",
        ),
        pytest.param(
            TIMED,
            {
                **cases("sample/1", "secret/1", "secret/group/1", "bad/1"),
                "data/secret/empty/1.png": "",
                "data/secret/1.yaml": "description: one\n",
                "data/test_group.yaml": "output_validator_args: [float_tolerance, '1e-6']\n",
                "problem_slide/a.tex": "",
                "output_visualizer/run": "",
            },
            "2 submissions judged, 0 skipped, 0 surprises",
            id="BAPCtools, groups",
        ),
        pytest.param(
            DRAFT + "author: A\nsource_url: b\nvalidation: custom interactive\n",
            {"output_validators/v.py": TALKS},
            "2 submissions judged, 0 skipped, 0 surprises",
            id="BAPCtools, draft",
        ),
        pytest.param(
            DRAFT,
            {**cases("secret/1"), "data/testdata.yaml": "output_validator_args: float_tolerance 1E-6\n"},
            "2 submissions judged, 0 skipped, 0 surprises",
            id="BAPCtools, arguments as one text",
        ),
        pytest.param(
            NEW + "type: pass-fail interactive\n",
            {"output_validator/v.py": TALKS},
            "2 submissions judged, 0 skipped, 0 surprises",
            id="the format, types in one text",
        ),
        pytest.param(
            DRAFT.replace("-draft", "")
            + "validation: {multipass: true}\nlimits: {time_multiplier: {ac_to_time_limit: 9}}\n",
            {"output_validators/v.py": TWICE},
            "2 submissions judged, 0 skipped, 0 surprises",
            id="the format, early draft",
        ),
    ],
)
def test_a_package_in_the_shape_of_another_judges_is_judged(
    packages: Packages, text: str, files: dict[str, str], last: str
) -> None:
    written = {"problem.yaml": text, **ADDS, **files}
    os.symlink("../../doc/problem.pdf", packages.write(written) / "problem.pdf")
    lines = packages.lines(written, 0, "--time-limit", "2")
    assert lines[-1] == last
    notes = [line for line in lines if "note: " in line]
    assert len(notes) == len(set(notes))
    assert packages.report(written, 0, "--time-limit", "2")["notes"] == [
        line.removeprefix("note: ") for line in notes if line.startswith("note: ")
    ]
