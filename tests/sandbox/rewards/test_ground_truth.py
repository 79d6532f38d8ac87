"""Problems from the labels and tests of public data sets, in every form."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import sandbox
from sandbox import Case, Problem
from sandbox.errors import InvalidProblem
from sandbox.rewards.caller import columns_of
from sandbox.rewards.ground_truth import COLUMNS, problem_in, problem_of
from sandbox.zoo import exhibits

STDIO = [("3 4\n", "7"), ("20 22\n", "42")]
TESTS = [{"input": given, "output": wanted} for given, wanted in STDIO]
TRUTH = {"inputs": [given for given, _ in STDIO], "outputs": [wanted for _, wanted in STDIO]}
ASSERTS = ["assert f(1) == 2", "assert f(21) == 42"]
CALLS = {"fn_name": "f", "inputs": [[1], [21]], "outputs": [2, 42]}
FORMS: list[tuple[Any, str]] = [
    (exhibits.SUM, "stdio"), (exhibits.SUM.to_json(), "stdio"), (json.dumps(exhibits.SUM.to_json()), "stdio"),
    (TRUTH, "stdio"), (json.dumps(TRUTH), "stdio"), (TESTS, "stdio"), ({"tests": TESTS}, "stdio"),
    ({"test_cases": TESTS, "language": "python"}, "stdio"), ({"ground_truth": json.dumps(TRUTH)}, "stdio"),
    ([{"input": {"stdin": given}, "output": {"stdout": wanted}} for given, wanted in STDIO], "stdio"),
    ({"inputs": [["3 4"], ["20 22"]], "outputs": [["7"], ["42"]]}, "stdio"),
    (CALLS, "function"), ({**CALLS, "inputs": ["1", "21"], "outputs": ["2", "42"]}, "function"),
    ({"test_cases": [{"fn_name": "f", "type": "function_call", "input": "1", "output": "2"}]}, "function"),
    (ASSERTS, "assert"), ("\n".join(ASSERTS), "assert"), ({"test_list": ASSERTS}, "assert"),
    ({"inputs": [], "outputs": [], "assert_case": ASSERTS}, "assert"), (json.dumps(ASSERTS), "assert"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "kind"), FORMS, ids=[f"{kind}-{n}" for n, (_, kind) in enumerate(FORMS)])
def test_every_form_of_a_data_set_becomes_the_problem_that_it_means(given: Any, kind: str) -> None:
    problem = problem_of(given)
    assert problem.kind == kind
    if kind == "stdio":
        assert [(case.input.strip(), case.expected) for case in problem.cases] == [(i.strip(), o) for i, o in STDIO]
    if kind == "function":
        assert (problem.fn_name, problem.cases[0]) == ("f", Case("[1]", "2"))


def test_a_text_is_the_result_itself_where_it_is_no_json() -> None:
    assert problem_of({"fn_name": "f", "inputs": ['"a"'], "outputs": ["b c"]}).cases == (Case('["a"]', '"b c"'),)


@pytest.mark.parametrize("problem", [exhibits.SUM, exhibits.DOUBLE, exhibits.ASSERTS], ids=lambda problem: problem.kind)
def test_the_columns_that_a_reward_function_is_checked_with_mean_the_problem_that_they_were_made_of(
    problem: Problem,
) -> None:
    row = columns_of(problem.to_json())
    found = problem_in({name: row[name] for name in row if name in COLUMNS} | {"id": "mine"})
    assert (found.id, found.kind, found.fn_name or "f", found.cases) == ("mine", problem.kind, "f", problem.cases)


NONE = [
    None, 7, "", "blue", [], {}, {"inputs": ["1"], "outputs": []}, [1], [{"input": "1"}],
    [{"input": "1", "output": None}], {"kind": "stdio", "cases": []}, {"fn_name": "f", "inputs": ["{"], "outputs": [1]},
]  # fmt: skip


@pytest.mark.parametrize("given", NONE)
def test_what_describes_no_problem_is_told_with_the_forms(given: Any) -> None:
    with pytest.raises(InvalidProblem):
        problem_of(given)
    own = "an expected output is null|must hold a JSON value per line"  # of tests that are there, and wrong
    with pytest.raises(
        InvalidProblem, match=rf"problem 'p': none of the columns id, tests holds tests: give a problem as|{own}"
    ):
        problem_in({"id": "p", "tests": given})


def test_nothing_as_the_result_of_a_function_is_null_and_as_an_output_is_refused() -> None:
    found = problem_of({"fn_name": "f", "inputs": [[1], [2]], "outputs": [None, 2]})
    assert found.cases == (Case("[1]", "null"), Case("[2]", "2"))
    with pytest.raises(InvalidProblem, match="an expected output is null: give the text that a program must print"):
        problem_of([{"input": "1", "output": "2"}, {"input": "2", "output": None}])


@pytest.mark.parametrize("pairs", [([[1], [2]], [None, None]), (["1", "2"], ["null", " null"]), ([[1]], ["null"])])
def test_results_that_are_all_null_are_refused_because_a_function_that_returns_nothing_would_pass(pairs: Any) -> None:
    given, wanted = pairs
    row = {"fn_name": "f", "inputs": given, "outputs": wanted}
    if wanted == ["null"]:  # beside arguments as values, a text is the result
        assert problem_of(row).cases[0].expected == '"null"'
        return
    for read in (problem_of, problem_in):
        with pytest.raises(InvalidProblem, match="every expected result is null, so a function that returns nothing"):
            read(row)


LONG = "9" * 5000


@pytest.mark.parametrize(
    ("given", "case"),
    [
        ({"fn_name": "f", "inputs": ["1"], "outputs": [LONG]}, Case("[1]", LONG)),
        ({"fn_name": "f", "inputs": [f"{LONG}\n2"], "outputs": ["1"]}, Case(f"[{LONG}, 2]", "1")),
        ({"inputs": [LONG], "outputs": [LONG]}, Case(LONG, LONG)),
        (
            {"id": "p", "kind": "function", "fn_name": "f", "cases": [{"input": "[1]", "expected": LONG}]},
            Case("[1]", LONG),
        ),
    ],
)
def test_an_integer_of_any_length_in_a_text_is_that_integer(given: Any, case: Case) -> None:
    assert problem_of(given).cases == (case,)
    assert problem_of(json.dumps(given)).cases == (case,)


@pytest.mark.parametrize(
    "row",
    [
        {"fn_name": "f", "inputs": [[1]], "outputs": [10**5000]},
        {"fn_name": "f", "inputs": [[10**5000]], "outputs": [1]},
        {"inputs": ["1"], "outputs": [10**5000]},
        {"inputs": [[10**5000, 1]], "outputs": ["1"]},
        [{"input": "1", "output": 10**5000}],
        f'{{"fn_name": "f", "inputs": [[1]], "outputs": [{LONG}]}}',
        f'[{{"input": "1", "output": {LONG}}}]',
    ],
)
def test_a_long_integer_that_is_no_text_is_refused_in_words(row: Any) -> None:
    with pytest.raises(InvalidProblem, match=r"an integer of more than 4,300 digits: give (inputs|the text)"):
        problem_of(row)


@pytest.mark.parametrize("value", [b"x", object()])
def test_a_value_that_json_has_not_is_refused_in_words(value: Any) -> None:
    with pytest.raises(InvalidProblem, match=r"is no value of JSON .*: give inputs and outputs as JSON text"):
        problem_of({"fn_name": "f", "inputs": [[value]], "outputs": [1]})


RESULTS = [([1], "5", '"5"'), ("1", "5", "5"), ([1], {}, "{}"), ([1], [1, 2], "[1, 2]"), ("1", "[5]", "[5]")]


@pytest.mark.parametrize(("given", "wanted", "expected"), RESULTS)
def test_a_result_that_stands_beside_arguments_as_values_is_a_value_too(given: Any, wanted: Any, expected: str) -> None:
    assert problem_of({"fn_name": "f", "inputs": [given], "outputs": [wanted]}).cases[0].expected == expected


def test_an_empty_object_is_an_argument() -> None:
    assert problem_of([{"fn_name": "f", "input": {}, "output": 1}]).cases == (Case("[{}]", "1"),)


ARRAYS = [
    {"inputs": np.array(["3 4\n", "20 22\n"], dtype=object), "outputs": np.array(["7", "42"], dtype=object)},
    np.array([{"input": "3 4\n", "output": "7", "fn_name": None}], dtype=object),
    {"tests": np.array([{"input": "3 4\n", "output": "7", "fn_name": float("nan")}], dtype=object)},
    {"inputs": np.array(["3 4\n"], dtype=object), "outputs": np.array([np.int64(7)]), "fn_name": float("nan")},
    {"test_cases": {"input": np.array(["3 4\n"], dtype=object), "output": np.array(["7"], dtype=object)}},
    {"kind": None, "cases": None, "inputs": ["3 4\n"], "outputs": ["7"], "functional": None, "expected": None},
    [{"input": "3 4\n", "output": None, "expected": "7"}],
    "{'inputs': ['3 4\\n'], 'outputs': ['7'], 'fn_name': None}",
]


@pytest.mark.parametrize("given", ARRAYS, ids=range(len(ARRAYS)))
def test_values_of_pandas_and_parquet_describe_problems_too(given: Any) -> None:
    for problem in (problem_of(given), problem_in({"id": np.int64(1), "ground_truth": given, "label": float("nan")})):
        assert (problem.kind, problem.cases[0]) == ("stdio", Case("3 4\n", "7"))


def test_asserts_in_an_array_are_asserts() -> None:
    assert problem_of(np.array(ASSERTS, dtype=object)).kind == "assert"


@pytest.mark.parametrize(
    ("tests", "cases"),
    [
        ({"inputs": ["{1: 2}"], "outputs": ["True"]}, [Case("[{1: 2}]", "true")]),
        ({"inputs": ['{"1": 2}'], "outputs": ["(1, 2)"]}, [Case("[{1: 2}]", "[1, 2]")]),
        ({"inputs": [[{"1": 2}]], "outputs": [2]}, [Case("[{1: 2}]", "2")]),
        ({"inputs": ['"a"'], "outputs": ["(a"]}, [Case('["a"]', '"(a"')]),
    ],
)
def test_arguments_and_results_are_what_python_wrote(tests: Any, cases: list[Case]) -> None:
    assert list(problem_of({"fn_name": "f", **tests}).cases) == cases


def test_results_that_may_be_wrapped_in_lists_are_right_in_both_forms() -> None:
    problem = problem_of({"fn_name": "f", "inputs": [[1], [2]], "outputs": [[5], [6]]})
    for source, verdict in (("n + 4", "AC"), ("[n + 4]", "AC"), ("[[n + 4]]", "WA"), ("[n]", "WA")):
        assert sandbox.judge(problem, f"def f(n):\n    return {source}\n").verdict == verdict


@pytest.mark.parametrize("wanted", [{}, {"a": 1}, {"stdin": "3"}, [None], [["1"], {}], [[None]]])
def test_what_is_no_text_of_a_stream_is_refused(wanted: Any) -> None:
    with pytest.raises(InvalidProblem, match="is no text of a stream: give a text, or lines"):
        problem_of({"inputs": ["1", "2"], "outputs": ["2", wanted]})


def test_a_list_in_a_line_holds_its_values() -> None:
    assert problem_of({"inputs": [[[1, 2], "x"]], "outputs": [["3"]]}).cases == (Case("1 2\nx", "3"),)


CALLED = ["def t():\n    assert f(1) == 2\nt()", "class T:\n    assert f(1) == 2", "for x in [1]:\n    assert f(x)"]
UNCALLED = [
    "def t():\n    assert f(1) == 2",
    "class T(U):\n    def test(self):\n        assert f(1)",
    "import f\nasync def t():\n    assert f()",
    "import random\nimport numpy\nrandom.seed(0)\ndef check(candidate):\n    assert candidate(1) == 2\nprint('ok')",
    "import pytest\n@pytest.mark.parametrize('x', [1])\ndef test(x):\n    assert f(x) == 2",
    "class T:\n    def test(self):\n        assert f(1) == 2\nx = int('1')",
    "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        assert f(1) == 2\nunittest.main()",
    "from unittest import TestCase\nclass T(TestCase):\n    def test(self):\n        assert f(1) == 2\nT('test').run()",
    "if __name__ == '__main__':\n    assert f(1) == 2",
    "def check(candidate):\n    assert candidate(1) == 2\nif __name__ == '__main__':\n    check(f)",
    "def outer():\n    def inner():\n        assert f(1) == 2\n    return 1\nouter()",
]
REACHED = [
    "def t():\n    assert f(1) == 2\nfor each in (t,):\n    each()",
    "def t():\n    assert f(1) == 2\nglobals()['t']()",
    "class T:\n    def test(self):\n        assert f(1) == 2\nT().test()",
    "@run\ndef t():\n    assert f(1) == 2",
    "def outer():\n    def inner():\n        assert f(1) == 2\n    inner()\nouter()",
    "async def t():\n    assert f(1) == 2\nimport asyncio\nasyncio.run(t())",
]
SELF = "def f(x):\n    return 2\n"
EMPTY = [
    (f"{SELF}assert f(1) == 2", "f"),
    (f"{SELF}def check(candidate):\n    assert candidate(1) == 2\ncheck(f)", "check"),
    ("def check(candidate):\n    assert check('1') == 'Yes'\ncheck(check)", "check"),
    ("class Solution:\n    def f(self):\n        return 2\nassert Solution().f() == 2", "Solution"),
    ("f = lambda x: 2\nassert f(1) == len([1, 2])", "f"),
    ("from math import sqrt\nassert sqrt(4) == 2", "sqrt"),
    ("fact = lambda n: n and fact(n - 1)\nassert fact(1) == 0", "fact"),
    ("x = len([y for y in 'ab'])\ny = 2\nassert x == y\ndef f(x): return x\nassert f(1) == 1", "f"),
    ("try:\n    f\nexcept NameError:\n    def f(x): return 2\nassert f(1) == 2", "f"),
]
MEANT = [
    "def ref(x): return 2\nassert f(1) == ref(1)", "assert sum([1, 2]) == 3", "x = [1]\nassert sum(x) == 1",
    "from solution import f\nassert f(1) == 2", "import main\nassert main.f(1) == 2",
    "from main import *\nassert f(1) == 2", "import sys\nassert sys.modules['main'].f(1) == 2",
    "from importlib import import_module\nassert import_module('main').f(1) == 2",
    "def run():\n    import solution\n    assert solution.f(1) == 2\nrun()", "assert globals()['f'](1) == 2",
    "area = area(3)\nassert area == 9", "assert f(1) == 2\nf = None", "f = f\nassert f(1) == 2",
    "def check(candidate):\n    assert sum(10, 15) == 6\ncheck(sum)",
    "def check(candidate):\n    assert candidate(1) == 2\ncheck(f)", "assert [f(x) for x in (1, 2)] == [2, 2]",
    "assert (f(1) == 2, 'f(1) is 2')\nassert f(2) == 3",
]  # fmt: skip


@pytest.mark.parametrize(("text", "names"), EMPTY)
def test_asserts_about_what_the_test_itself_defines_are_refused(text: str, names: str) -> None:
    for given in ([text], {"fn_name": "f", "assert_case": [text]}, {"test_list": ["assert f(1) == 2", text]}):
        with pytest.raises(InvalidProblem, match=rf"defines itself what it asserts \({names}\), and asks nothing"):
            problem_of(given)
    with pytest.raises(InvalidProblem, match="defines itself what it asserts"):
        problem_in({"id": "p", "test_list": [text], "answer": "def f(x): return 2\nassert f(1) == 2"})
    with pytest.raises(InvalidProblem, match="defines itself what it asserts"):
        problem_in({"id": "p", "test": text})


REFUSED = [
    *((text, "calls none of its functions that assert, so every") for text in UNCALLED),
    ("assert (f(1) == 2, 'f(1) is 2')", r"asserts tuples, which always hold \(leave the brackets out\)"),
    *(
        (text, "uses nothing of a program, so every")
        for text in ("assert True", "assert 1 == 1", "x = 1\nassert x == 1")
    ),
]


@pytest.mark.parametrize(("text", "why"), REFUSED)
def test_asserts_that_every_program_passes_are_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidProblem, match=why):
        problem_of([text])


def test_asserts_of_a_builtin_are_refused_where_the_problem_is_about_another_function() -> None:
    with pytest.raises(InvalidProblem, match="uses nothing of a program"):
        problem_of({"fn_name": "f", "assert_case": ["assert len([1]) == 1"]})
    assert problem_of({"fn_name": "sum", "assert_case": ["assert sum([1]) == 1"]}).kind == "assert"


@pytest.mark.parametrize("text", [*CALLED, *REACHED, *MEANT])
def test_asserts_that_may_ask_something_of_the_program_are_judged(text: str) -> None:
    assert problem_of([text]).kind == "assert"


@pytest.mark.parametrize("tests", [[{"input": "1", "output": None}], {"inputs": ["1"], "outputs": ["1", "2"]}])
def test_tests_that_are_refused_are_not_replaced_by_what_the_answer_asserts(tests: Any) -> None:
    with pytest.raises(InvalidProblem, match=r"an expected output is null|of the same length"):
        problem_in({"tests": tests, "answer": "def f(x): return 2\nassert f(1) == 2"})


def test_a_column_that_is_named_and_missing_is_told_with_those_that_are_there() -> None:
    with pytest.raises(InvalidProblem, match="has no column 'gold', but id, tests"):
        problem_in({"id": "p", "tests": TESTS}, "gold")
