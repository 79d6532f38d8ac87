"""Readers of the public problem formats, one by one, and on the real files."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from places import SHARED
from rows import OWN, jsonl, only, shared
from wide import wide

from overlap.core.errors import ConfigError
from recipes.code_rl.core import CodeProblem
from recipes.code_rl.data import load_problems
from sandbox import Pool, Program
from sandbox.core.nouns import Case, Judgement
from sandbox.judging.judge import Judge

# --- how outputs are compared ---------------------------------------------------------------------------------


LIVE = {"question_id": "q", "question_content": "?", "starter_code": "class Solution:\n    def f(self, x):"}
CALLED = [{"input": "3", "output": "[1, 2]", "testtype": "functional"}]
PRINTED = [{"input": "3\n", "output": "1\n0.3333333333333333\n7", "testtype": "stdin"}]
SAID = "class Solution:\n    def f(self, x): return {}"
RULES = [
    (PRINTED, "print(1, 1 / 3, 7, sep='\\n')", "AC"),
    (PRINTED, "print(' 1.0', 1 / 3, '\\t7e0 ', sep='\\n')", "AC"),
    (PRINTED, "print(1, 1 / 3, 7)", "WA"),
    (PRINTED, "print(1, 0.3333333, 7, sep='\\n')", "WA"),
    (CALLED, SAID.format("[1, 2]"), "AC"),
    (CALLED, "def f(x): return 1.0, 2", "AC"),
    (CALLED, SAID.format("[1, 2.0000001]"), "WA"),
    (CALLED, "def g(x): return [1, 2]", "RE"),
]


@pytest.mark.parametrize("published", ["LiveCodeBench", "DeepCoder", "verl"])
def test_livecodebench_rows_are_compared_as_its_grader_does(tmp_path: Path, judge: Judge, published: str) -> None:
    for tests, source, verdict in RULES:
        named = tests if tests is PRINTED else [test | {"metadata": {"func_name": "f"}} for test in tests]
        row = {"problem": "?", "starter_code": LIVE["starter_code"], "tests": json.dumps(named)}
        if published == "LiveCodeBench":
            row = LIVE | {"public_test_cases": json.dumps(named)}
        elif published == "verl":
            truth = {"style": "rule", "ground_truth": json.dumps(named)}
            row = {"prompt": [{"role": "user", "content": "?"}], "reward_model": truth, "ability": "code"}
        assert judge.judge(only(tmp_path, row).problem, Program(source)).verdict == verdict, source


@pytest.mark.promise("integers")
@pytest.mark.parametrize(
    ("expected", "said", "verdict"),
    [
        ("998244353", "998244353", "AC"),
        ("998244353", "998244353.0", "AC"),
        ("998244353", "998244354", "WA"),
        ("998244353", "998244353.5", "WA"),
        ("7", "7.0000001", "WA"),
        ("7.0", "7.0000001", "AC"),
        ("7.5", "7.5000001", "AC"),
    ],
)
def test_a_tolerance_is_for_floats_and_not_for_integers(
    tmp_path: Path, judge: Judge, expected: str, said: str, verdict: str
) -> None:
    printed = {"inputs": ["", ""], "outputs": [f"yes 2 {expected}\n", "1"]}
    returned = {"fn_name": "f", "inputs": [[0], [1]], "outputs": [["yes", json.loads(expected)], ["no"]]}
    for tests, source in (
        (printed, f"print('yes 2 {said}')"),
        (returned, f"def f(x): return ['yes', {said}]"),
    ):
        problem = only(tmp_path, {"question": "?", "input_output": json.dumps(tests)}).problem
        alone = replace(problem, cases=problem.cases[:1])
        assert judge.judge(alone, Program(source)).verdict == verdict, source


@pytest.mark.parametrize(
    ("words", "said", "verdict"),
    [
        ("", "7", "AC"),
        ("", "8", "WA"),
        ("if b != '7': print('wrong: found', b)", "8", "WA"),
        ("if b != '7': print('\N{ROCKET} tests read: 5')", "8", "WA"),
        ("if b != '7': import os; os._exit(0)", "8", "WA"),
    ],
)
def test_the_whole_output_of_a_codeforces_checker_is_the_score(
    tmp_path: Path, judge: Judge, words: str, said: str, verdict: str
) -> None:
    reads = "# \N{GRINNING FACE}\nimport sys\na, b = (open(n).read().strip() for n in sys.argv[2:])"
    tests = {"official_tests": [{"input": "5\n", "output": "7\n"}], "examples": []}
    row = {"id": "1/A", "description": "d", "generated_checker": f"{reads}\n{words}\nprint(int(a == b))", **tests}
    assert judge.judge(only(tmp_path, row).problem, Program(f"print({said})")).verdict == verdict


# --- DeepCoder ------------------------------------------------------------------------------------------------


def many(n: int) -> dict[str, Any]:
    return {"inputs": [[i] for i in range(n)], "outputs": [[i + 1] for i in range(n)], "fn_name": "inc"}


@pytest.mark.parametrize("as_text", [False, True])
def test_a_function_name_survives_more_than_fifteen_tests(tmp_path: Path, as_text: bool) -> None:
    tests = many(40)
    row = {"problem": "p", "tests": json.dumps(tests) if as_text else tests, "starter_code": ""}
    problem = only(tmp_path, row).problem
    assert (problem.kind, problem.fn_name, len(problem.cases)) == ("function", "inc", 15)


STARTER = "class Solution:\n    def f(self, a: List[int]) -> List[int]:\n        "
LINES = {"input": '[1, 2]\n"a"', "output": "3", "testtype": "functional", "metadata": {"func_name": "f"}}
CALL = {"type": "function_call", "fn_name": "f", "input": "[[1, 2], 5]", "output": "true"}
NAMED = {"tests": [{"input": "1", "output": "3", "testtype": "functional"}], "metadata": '{"func_name": "g"}'}
APPS = {"question": "q", "input_output": json.dumps({"inputs": [["1", "2"]], "outputs": [["3"]]})}


def calls(inputs: list[Any], outputs: list[Any]) -> dict[str, Any]:
    return {"tests": {"inputs": inputs, "outputs": outputs, "fn_name": "f"}}


# what: row, function, input and expected output of each case
READ: dict[str, tuple[dict[str, Any], str | None, list[tuple[str, str]]]] = {
    "results in lists of one, as Codewars means them": (
        calls([[1], [2]], [[[2, 4]], [[3]]]),
        "f",
        [("[1]", "[2, 4]"), ("[2]", "[3]")],
    ),
    "results of a class Solution are never unwrapped": (
        {"starter_code": STARTER, **calls([[[1]]], [[1]])},
        "Solution.f",
        [("[[1]]", "[1]")],
    ),
    "text in a dict": (calls([["7"], ["8"]], ["7", "8"]), "f", [('["7"]', '"7"'), ('["8"]', '"8"')]),
    "LiveCodeBench: an argument a line": ({"tests": json.dumps([LINES])}, "f", [('[[1, 2], "a"]', "3")]),
    "a function that the row's metadata name": (NAMED, "g", [("[1]", "3")]),
    "PrimeIntellect: one list of arguments": ({"tests": [CALL]}, "f", [("[[1, 2], 5]", "true")]),
    "standard input in a list": (
        {"tests": [{"input": "1\n", "output": "2\n", "testtype": "stdin"}]},
        None,
        [("1\n", "2\n")],
    ),
    "standard input in a dict": ({"tests": {"inputs": ["1\n"], "outputs": ["2\n"]}}, None, [("1\n", "2\n")]),
    "lines of an APPS input": (APPS, None, [("1\n2", "3")]),
}


@pytest.mark.parametrize("name", READ)
def test_tests_become_cases(tmp_path: Path, name: str) -> None:
    row, function, cases = READ[name]
    problem = only(tmp_path, {"problem": "p", **row} if "tests" in row else row).problem
    assert (problem.kind, problem.fn_name) == ("function" if function else "stdio", function)
    assert [(case.input, case.expected) for case in problem.cases] == cases
    assert "from typing import *" in problem.preamble


@pytest.mark.promise("integers")
def test_integers_of_thousands_of_digits_are_read_as_they_stand(tmp_path: Path) -> None:
    digits, path = "7" * 6000, tmp_path / "long.jsonl"
    tests = '{"inputs": [[N]], "outputs": [N], "fn_name": "f"}'.replace("N", digits)
    path.write_text(f'{{"problem": "p", "tests": {tests}}}\n')
    (problem,) = load_problems(str(path)).problems
    assert problem.problem.cases[0] == Case(f"[{digits}]", digits)


def test_half_of_a_surrogate_pair_is_refused(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "bad.jsonl", {**OWN, "statement": "\ud83d"})
    with pytest.raises(ConfigError, match="lone surrogate"):
        load_problems(path)


@pytest.mark.parametrize(
    ("tests", "complaint"),
    [
        ({"inputs": ["1"], "outputs": []}, "every input needs its output"),
        ({"inputs": ["1"]}, "needs inputs and outputs"),
        ([{"input": "1"}], "input and output"),
        ([{"input": "1", "output": "1", "testtype": "functional"}], "need fn_name or metadata.func_name"),
        ("nonsense", "not JSON"),
        (17, "tests must be a list"),
        ({"inputs": [{"a": 1}], "outputs": ["1"]}, "text, a list of lines"),
        ([CALL, CALL | {"fn_name": "g"}], "several functions"),
        ([], "no usable problem: 1 no tests"),
        ({"inputs": [], "outputs": []}, "no tests"),
        ("[]", "no tests"),
    ],
)
def test_malformed_or_missing_deepcoder_tests_are_refused(tmp_path: Path, tests: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_problems(jsonl(tmp_path / "bad.jsonl", {"problem": "p", "tests": tests}))


# --- APPS and TACO, HumanEval, MBPP ---------------------------------------------------------------------------


def test_an_mbpp_row_starts_with_the_name_that_its_asserts_call(tmp_path: Path) -> None:
    test = "assert set(find(1)) == {1}"
    row = {"task_id": 3, "text": "t", "code": "x", "test_list": [test], "test_setup_code": "z = 1"}
    problem = only(tmp_path, row)
    assert (problem.id, problem.starter) == ("MBPP/3", "def find(")
    assert problem.problem.cases == (Case(f"z = 1\n{test}"),)


# --- the real files -------------------------------------------------------------------------------------------

FUSION, LABELLED = "sandboxfusion_samples/code_eval", "llm_samples_labelled"
REFERENCES: dict[str, set[str]] = {
    "humaneval/HumanEval.jsonl.gz": set(),
    "humaneval_x/humaneval_python.jsonl.gz": set(),
    "mbpp/mbpp.jsonl": set(),
    "apps_sample/train": set(),
    f"{LABELLED}/mbpp_dataset_probs.jsonl": {"MBPP/436"},  # returns the first of the numbers that it should return
    f"{LABELLED}/humaneval_seed_starcoder_seed.jsonl": set(),
    f"{FUSION}_mbpp.jsonl": set(),
    f"{FUSION}_mbxp_v1_en.jsonl": set(),
    f"{FUSION}_bigcodebench.jsonl": {"BigCodeBench/0", "BigCodeBench/1005"},  # 10! permutations; wants the network
    f"{FUSION}_humanevalds_v1_en.jsonl": {"1270", "1271"},  # sys.exit(0)
    f"{FUSION}_oodtest_v1_zh.jsonl": {"1", "2"},  # os.exit
    f"{FUSION}_shadow_humaneval_python.jsonl": {"12", "32", "33", "37"},  # tests that name what is not there
}
"""Files of which every reference is judged, and the problems whose reference or test is wrong as it stands."""
STEPS = {"mbpp/mbpp.jsonl": 20, f"{LABELLED}/mbpp_dataset_probs.jsonl": 20}
SLOW = {f"{FUSION}_bigcodebench.jsonl", f"{FUSION}_shadow_humaneval_python.jsonl"}
"""Of the former, every twentieth reference is judged by default, of the latter none; all of them with --wide."""
FILES = [
    ("humaneval/HumanEval.jsonl.gz", "assert", 164, {}),
    ("mbpp/mbpp.jsonl", "assert", 974, {}),
    ("rllm_deepcoder/code_contests_test.json", "stdio", 165, {}),
    ("rllm_deepcoder/codeforces_test.json", "stdio", 408, {}),
    (f"{FUSION}_bigcodebench.jsonl", "assert", 4, {"package not there": 16}),
    (f"{FUSION}_mbxp_v1_en.jsonl", "assert", 2, {"other language": 18}),
    (f"{FUSION}_live_code_bench_v1.jsonl", "function stdio", 3, {}),
    (f"{FUSION}_code_contests.jsonl", "stdio", 20, {}),
    (f"{FUSION}_mhpp.jsonl", "assert", 20, {}),
    (f"{FUSION}_rl_train_oj_0328_1707.jsonl", "assert", 20, {}),
    (f"{FUSION}_shadow_humaneval_python.jsonl", "assert", 19, {"malformed": 1}),
]


class TestPublicFiles:
    pytestmark = shared

    @pytest.mark.promise("formats")
    @pytest.mark.parametrize(("name", "kinds", "usable", "reasons"), FILES)
    def test_every_row_of_a_public_file_is_read_or_its_reason_counted(
        self, name: str, kinds: str, usable: int, reasons: dict[str, int]
    ) -> None:
        found = load_problems(str(SHARED / name))
        assert len(found.problems) == usable
        assert Counter(row.reason for row in found.left_out) == reasons
        assert {problem.problem.kind for problem in found.problems} == {*kinds.split()}
        assert max(len(problem.problem.cases) for problem in found.problems) <= 15

    @pytest.mark.promise("formats")
    @pytest.mark.timeout(240)
    @pytest.mark.parametrize(
        ("name", "step"),
        [
            *((name, STEPS.get(name, 1)) for name in REFERENCES if name not in SLOW),
            *(wide(name, 1) for name in REFERENCES if name in SLOW or name in STEPS),
        ],
    )
    def test_references_are_accepted_but_for_those_whose_own_row_is_wrong(self, name: str, step: int) -> None:
        problems = [p for p in load_problems(str(SHARED / name)).problems if p.references][::step]
        wrong = REFERENCES[name] & {problem.id for problem in problems}

        async def judge(pool: Pool, problem: CodeProblem) -> Judgement:
            asked = problem.problem
            if problem.id not in wrong:  # on a slow machine, too
                asked = replace(asked, limits=replace(asked.limits, cpu_s=20.0))
            return await pool.judge(asked, Program(problem.references[0]))

        async def verdicts() -> list[tuple[str, str]]:
            async with asyncio.timeout(220), Pool() as pool:
                jobs = [judge(pool, problem) for problem in problems]
                return [(p.id, str(j.verdict)) for p, j in zip(problems, await asyncio.gather(*jobs), strict=True)]

        assert problems
        assert {id for id, verdict in asyncio.run(verdicts()) if verdict != "AC"} == wrong


def released(**other: Any) -> dict[str, Any]:
    return {
        "task_id": "HumanEval/1",
        "prompt": "def half(n):\n",
        "entry_point": "half",
        "canonical_solution": "    return n / 2\n",
        "base_input": [[4]],
        "plus_input": [[7], [-1.5]],
        "atol": 0,
        **other,
    }


def test_evalplus_releases_are_judged_by_base_and_plus_inputs(tmp_path: Path, judge: Judge) -> None:
    problem = only(tmp_path, released()).problem
    near = "def half(n):\n    return n / 2 + 1e-9\n"
    base_only = "def half(n):\n    return n // 2 if n == int(n) else 0\n"
    verdicts = {source: judge.judge(problem, Program(source)) for source in (near, base_only)}
    assert [case.verdict for case in verdicts[near].cases] == ["AC", "AC"]
    assert [case.verdict for case in verdicts[base_only].cases] == ["AC", "WA"]


def test_words_of_a_solution_are_left_as_they_are(tmp_path: Path, judge: Judge) -> None:
    row = released(canonical_solution='    NAME, INPUTS, ATOL = 1, "SOURCE", 2\n    return n / ATOL\n')
    problem = only(tmp_path, row)
    assert judge.judge(problem.problem, Program(problem.references[0])).verdict == "AC"


def test_any_root_is_a_right_answer_of_find_zero(tmp_path: Path, judge: Judge) -> None:
    row = released(
        entry_point="find_zero", prompt="def find_zero(xs):\n", base_input=[[[-2, 1]], [[6, -5, 1]]], atol=1e-4
    )
    problem = only(tmp_path, {**row, "plus_input": []}).problem
    for root, verdict in ((3, "AC"), (5, "WA")):
        source = f"def find_zero(xs):\n    return 2 if len(xs) == 2 else {root}\n"
        assert judge.judge(problem, Program(source)).verdict == verdict
