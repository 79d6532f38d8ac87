"""A row of our own making for every shape that public sets are documented to have, with a bad row beside it."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from dataclasses import dataclass, field
from typing import Any

Values = dict[str, Any]
STDIO_RIGHT = "print(sum(map(int, input().split())))\n"
STDIO_WRONG = "print(0)\n"
RIGHT = "def add(a, b):\n    return a + b\n"
WRONG = "def add(a, b):\n    return a - b\n"
SOLUTION = "class Solution:\n    def add(self, a: int, b: int) -> int:\n        return a + b\n"
SOLUTION_WRONG = SOLUTION.replace("a + b", "a * b")
STARTER = "class Solution:\n    def add(self, a: int, b: int) -> int:\n        "
CHECK = "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(5, -5) == 0\n"
NAMED_CHECK = "def check(candidate):\n    assert candidate(a=1, b=2) == 3\n    assert candidate(a=5, b=-5) == 0\n"
HEAD = 'def add(a, b):\n    """Adds."""\n'
BODY = "    return a + b\n"


@dataclass(frozen=True)
class Sample:
    """A format's name (in ``data.FORMATS``), a good and a bad row of it, and programs that tell right from wrong."""

    format: str
    good: Values
    bad: Values
    reason: str
    right: str = STDIO_RIGHT
    wrong: str = STDIO_WRONG
    kind: str = "stdio"
    packages: tuple[str, ...] = field(default=())


def packed(tests: list[Values]) -> str:
    """As LiveCodeBench stores its private tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def _synthetic(tests: Any, **more: Any) -> Values:
    info = {"language": "python", "test_cases": tests}
    return {"problem_id": "s1", "task_type": "verifiable_code", "prompt": "Add.", "verification_info": info} | more


def _verl(ground_truth: Any) -> Values:
    return {"prompt": [{"role": "user", "content": "Add."}], "reward_model": {"ground_truth": json.dumps(ground_truth)}}


_LIST = [{"input": "1 2\n", "output": "3\n"}, {"input": "4 5\n", "output": "9\n"}]
_TYPED = [{**test, "type": "stdin_stdout"} for test in _LIST]
_CALLS = [{"type": "function_call", "fn_name": "add", "input": [1, 2], "output": [3]}]
_CALLS += [{"type": "function_call", "fn_name": "add", "input": [5, -5], "output": [0]}]
_DICT = {"inputs": ["1 2\n", "4 5\n"], "outputs": ["3\n", "9\n"]}
_LINES = {"inputs": [["1 2"], ["4 5"]], "outputs": [["3"], ["9"]]}
_VALUES = {"inputs": [[[1, 2]], [[4, 5]]], "outputs": [[3], 9]}
_LCB = [{"input": "1\n2", "output": "3", "testtype": "functional"}]
_CALLED = {"kind": "function", "right": RIGHT, "wrong": WRONG}
_METHOD = {"kind": "function", "right": SOLUTION, "wrong": SOLUTION_WRONG}
ASSERTED = {"kind": "assert", "right": RIGHT, "wrong": WRONG}
CLASS_ASSERTED = {"kind": "assert", "right": SOLUTION, "wrong": SOLUTION_WRONG}
_OWN = {"id": "o", "kind": "function", "statement": "Add.", "fn_name": "add"}
_METHOD_ROW = {"question": "Add.", "func_name": "add", "class_name": "Solution", "starter_code": STARTER}
_LIVE = {"question_content": "Add.", "public_test_cases": "[]"}
_CODEFORCES = {"id": "1/A", "description": "Add.", "official_tests": _LIST}
_CHECKER = """
#include <fstream>
int main(int argc, char** argv) {
    std::ifstream in(argv[1]), out(argv[2]), answer(argv[3]);
    long a, b, got;
    in >> a >> b;
    return out >> got && got == a + b ? 0 : 1;
}
"""
_SCORER = """
import sys
given, expected, got = (open(name).read().split() for name in sys.argv[1:4])
print(1 if got and int(got[0]) == sum(map(int, given)) else 0)
"""

SAMPLES: dict[str, Sample] = {
    "our own": Sample(
        "our own",
        _OWN | {"tests": [{"input": "[1, 2]", "output": "3"}]},
        _OWN | {"kind": "quiz", "tests": []},
        "malformed",
        **_CALLED,
    ),
    "DeepCoder: a list as text": Sample(
        "DeepCoder", {"problem": "Add.", "tests": json.dumps(_TYPED)}, {"problem": "?", "tests": "[{"}, "malformed"
    ),
    "DeepCoder: inputs and outputs": Sample(
        "DeepCoder", {"problem": "Add.", "tests": json.dumps(_DICT)}, {"problem": "?", "tests": "[]"}, "no tests"
    ),
    "DeepCoder: function calls in lists": Sample(
        "DeepCoder",
        {"problem": "Add.", "tests": _CALLS},
        {"problem": "?", "tests": [{"input": 1}]},
        "malformed",
        **_CALLED,
    ),
    "DeepCoder: LiveCodeBench": Sample(
        "DeepCoder",
        {"problem": "Add.", "starter_code": STARTER, "tests": _LCB, "metadata": {"func_name": "add"}},
        {"problem": "?", "tests": [{"input": "1", "output": "1", "testtype": "functional"}]},
        "malformed",
        **_METHOD,
    ),
    "rLLM: functional": Sample(
        "DeepCoder",
        {
            "problem": "Add.",
            "tests": {"functional": f"{NAMED_CHECK}\ncheck(Solution().add)\n"},
            "solutions": [SOLUTION],
        },
        {"problem": "?", "tests": {"functional": "check("}},
        "malformed",
        **CLASS_ASSERTED,
    ),
    "APPS": Sample(
        "APPS, TACO",
        {"question": "Add.", "input_output": json.dumps(_DICT), "solutions": json.dumps([STDIO_RIGHT])},
        {"question": "?", "input_output": ""},
        "no tests",
    ),
    "TACO: lines": Sample(
        "APPS, TACO",
        {"question": "Add.", "input_output": json.dumps(_LINES)},
        {"question": "?", "input_output": "{}"},
        "no tests",
    ),
    "TACO: values": Sample(
        "APPS, TACO",
        {"question": "Add.", "input_output": _VALUES},
        {"question": "?", "input_output": {"inputs": []}},
        "malformed",
    ),
    "SYNTHETIC-1: text": Sample(
        "SYNTHETIC-1, SYNTHETIC-2",
        _synthetic(_TYPED, gold_standard_solution=f"```python\n{STDIO_RIGHT}```"),
        _synthetic(_TYPED) | {"verification_info": {"language": "rust", "test_cases": _TYPED}},
        "other language",
    ),
    "SYNTHETIC-1: lines": Sample(
        "SYNTHETIC-1, SYNTHETIC-2",
        _synthetic([{"type": "stdin_stdout", "input": ["1 2"], "output": ["3"]}]),
        {"prompt": "2 + 2?", "task_type": "verifiable_math", "verification_info": {"ground_truth": "4"}},
        "no code task",
    ),
    "SYNTHETIC-1: values": Sample(
        "SYNTHETIC-1, SYNTHETIC-2",
        _synthetic([{"type": "stdin_stdout", "input": [[1, 2]], "output": [3]}]),
        _synthetic([]),
        "no tests",
    ),
    "SYNTHETIC-1: calls, as a Python literal": Sample(
        "SYNTHETIC-1, SYNTHETIC-2",
        _synthetic([]) | {"verification_info": repr({"language": "python", "test_cases": _CALLS})},
        _synthetic(None) | {"verification_info": "{'language': "},
        "malformed",
        **_CALLED,
    ),
    "SYNTHETIC-2": Sample(
        "SYNTHETIC-1, SYNTHETIC-2",
        _synthetic([], task_type="prime_rl_code")
        | {"verification_info": json.dumps({"ground_truth": json.dumps(_TYPED)})},
        _synthetic([], task_type="prime_rl_code") | {"verification_info": "{}"},
        "no tests",
    ),
    "verl": Sample("verl", _verl(_DICT) | {"ability": "code"}, _verl(4), "no code task"),
    "verl: a harness": Sample(
        "verl",
        _verl({"entry_point": "Solution().add", "test_code": NAMED_CHECK}),
        _verl([]) | {"prompt": []},
        "malformed",
        **CLASS_ASSERTED,
    ),
    "rStar-Coder": Sample(
        "rStar-Coder",
        {"question": "Add.", "inputs": json.dumps(_DICT["inputs"]), "outputs": json.dumps(_DICT["outputs"])},
        {"question": "?", "inputs": ["1"], "outputs": []},
        "malformed",
    ),
    "rStar-Coder: a method": Sample(
        "rStar-Coder",
        _METHOD_ROW | {"inputs": ["[1, 2]"], "outputs": ["3"]},
        _METHOD_ROW | {"inputs": [], "outputs": []},
        "no tests",
        **_METHOD,
    ),
    "LiveCodeBench": Sample(
        "LiveCodeBench",
        _LIVE | {"public_test_cases": json.dumps(_LIST[:1]), "private_test_cases": packed(_LIST[1:])},
        _LIVE | {"private_test_cases": "!" * 20},
        "malformed",
    ),
    "LiveCodeBench: a method": Sample(
        "LiveCodeBench",
        _LIVE | {"private_test_cases": packed(_LCB), "starter_code": STARTER, "metadata": '{"func_name": "add"}'},
        _LIVE,
        "no tests",
        **_METHOD,
    ),
    "CodeContests": Sample(
        "CodeContests",
        {
            "name": "c",
            "description": "Add.",
            "public_tests": {"input": ["1 2\n"], "output": ["3\n"]},
            "generated_tests": {"input": ["4 5\n"], "output": ["9\n"]},
            "solutions": {"language": [1, 3], "solution": ["print input()", STDIO_RIGHT]},
        },
        {"description": "?", "public_tests": {"input": ["1"], "output": ["1"]}, "input_file": "in.txt"},
        "cannot be judged",
    ),
    "CodeContests+": Sample(
        "CodeContests+",
        {"id": "1_A", "title": "Add", "description": "Add.", "test_cases": _LIST, "checker": _CHECKER},
        {"id": "1_B", "description": "?", "test_cases": []},
        "no tests",
    ),
    "Codeforces": Sample(
        "Codeforces",
        _CODEFORCES | {"title": "Add", "input_format": "a b", "examples": _LIST[:1]},
        _CODEFORCES | {"interaction_format": "Ask."},
        "cannot be judged",
    ),
    "Codeforces: a checker": Sample(
        "Codeforces",
        _CODEFORCES | {"official_tests": [{"input": "1 2\n", "output": "three"}], "generated_checker": _SCORER},
        _CODEFORCES | {"input_mode": "file"},
        "cannot be judged",
    ),
}
