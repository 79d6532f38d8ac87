"""Samples of the sets whose tests are code (see ``samples``)."""

from __future__ import annotations

import json

from samples import ASSERTED, BODY, CHECK, CLASS_ASSERTED, HEAD, NAMED_CHECK, RIGHT, SOLUTION, STARTER, Sample

_HUMANEVAL = "HumanEval, HumanEval+, LeetCode"
_TOLD = {"task_id": "H/0", "prompt": HEAD, "canonical_solution": BODY}
_EVAL = _TOLD | {"entry_point": "add", "test": CHECK}
_RELEASED = _TOLD | {"task_id": "HumanEval/0", "entry_point": "add", "contract": ""}
_LEETCODE = {"prompt": "", "problem_description": "Add.", "entry_point": "Solution().add", "test": NAMED_CHECK}
_MBPP = {"task_id": 1, "text": "Add.", "code": RIGHT}
_KODCODE = {"question": "Add.", "solution": RIGHT}
_FUSION = {"content": "Add.", "labels": "{}"}
_PLUS = """import numpy as np
def assertion(out, exp, atol):
    assert np.allclose(out, exp, atol=atol) if isinstance(exp, float) else out == exp
def check(candidate):
    for inp, exp in zip([[1, 2], [5, -5]], [3, 0]):
        assertion(candidate(*inp), exp, 0)
"""
_PYTEST = """import pytest
from solution import add

@pytest.mark.parametrize("a, b, total", [(1, 2, 3), (5, -5, 0)])
def test_sums(a, b, total):
    assert add(a, b) == total

def test_floats():
    assert add(0.1, 0.2) == pytest.approx(0.3)

def test_text_and_number_do_not_add():
    with pytest.raises(TypeError):
        add("a", 1)
"""
_UNITTEST = """import unittest
class TestCases(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(add(1, 2), 3)
"""

ASSERT_SAMPLES: dict[str, Sample] = {
    "HumanEval": Sample(_HUMANEVAL, _EVAL, _EVAL | {"prompt": ""}, "malformed", **ASSERTED),
    "HumanEval: a test that calls its check": Sample(
        _HUMANEVAL, _EVAL | {"test": f"{CHECK}\ncheck(add)\n"}, _EVAL | {"test": " "}, "no tests", **ASSERTED
    ),
    "HumanEval+": Sample(
        _HUMANEVAL,
        _EVAL | {"test": _PLUS},
        _EVAL | {"test": "import pandas\n" + CHECK},
        "package not there",
        packages=("numpy",),
        **ASSERTED,
    ),
    "HumanEval+ as released": Sample(
        "EvalPlus' releases",
        _RELEASED | {"base_input": [[1, 2], [5, -5]], "plus_input": [[10**20, 1], [0.1, 0.2]], "atol": 0},
        _RELEASED | {"task_id": "Mbpp/2", "base_input": [[1, 2]], "plus_input": []},
        "cannot be judged",
        **ASSERTED,
    ),
    "LeetCode": Sample(
        _HUMANEVAL,
        {
            **_LEETCODE,
            "prompt": "from typing import *\n\ndef same(a, b):\n    return a == b\n",
            "starter_code": STARTER,
            "completion": SOLUTION,
            "test": NAMED_CHECK + "    assert same(candidate(a=2, b=2), 4)\n",
        },
        _LEETCODE | {"entry_point": "Solution("},
        "malformed",
        **CLASS_ASSERTED,
    ),
    "HumanEval-X": Sample(
        "HumanEval-X",
        _TOLD | {"task_id": "Python/0", "declaration": HEAD, "test": f"{CHECK}\ncheck(add)\n"},
        {"task_id": "Rust/0", "prompt": "", "declaration": "", "test": CHECK},
        "other language",
        **ASSERTED,
    ),
    "MBPP": Sample(
        "MBPP, MBPP+",
        _MBPP | {"test_list": ["assert add(1, 2) == 3", "assert add(5, -5) == 0"]},
        _MBPP | {"test_list": ["add(1, 2)"]},
        "malformed",
        **ASSERTED,
    ),
    "MBPP+": Sample(
        "MBPP, MBPP+",
        _MBPP
        | {"test_imports": ["import math"], "test_list": ["assert add(1, -1) == 0"]}
        | {"test": "assert [add(*v) for v in [(2, 2)]] == [4]"},
        _MBPP | {"test_list": []},
        "no tests",
        **ASSERTED,
    ),
    "KodCode": Sample(
        "KodCode",
        _KODCODE | {"test": _PYTEST, "test_info": [{"function_declaration": "def add(a, b):"}]},
        _KODCODE | {"test": "def test_files(tmp_path):\n    assert tmp_path\n"},
        "package not there",
        **ASSERTED,
    ),
    "KodCode's test_code": Sample(
        "KodCode's test_code", _KODCODE | {"test_code": _PYTEST}, _KODCODE | {"test_code": " "}, "no tests", **ASSERTED
    ),
    "BigCodeBench": Sample(
        "BigCodeBench",
        {"instruct_prompt": "Add.", "code_prompt": HEAD, **_EVAL, "test": _UNITTEST},
        {"instruct_prompt": "?", **_EVAL, "test": "import matplotlib\n" + _UNITTEST},
        "package not there",
        **ASSERTED,
    ),
    "SandboxFusion: streams": Sample(
        "SandboxFusion",
        {**_FUSION, "test": json.dumps([{"input": {"stdin": "1 2"}, "output": {"stdout": "3"}}])},
        {**_FUSION, "test": "[]"},
        "no tests",
    ),
    "SandboxFusion: asserts": Sample(
        "SandboxFusion",
        {**_FUSION, "test": "assert add(1, 2) == 3"},
        {**_FUSION, "test": "add(1, 2)"},
        "malformed",
        **ASSERTED,
    ),
    "SandboxFusion: code around": Sample(
        "SandboxFusion",
        {**_FUSION, "test": json.dumps({"code": f"#<INSERT>\n{CHECK}\ncheck(add)"})},
        {**_FUSION, "labels": {"programming_language": "cpp"}, "test": "x"},
        "other language",
        **ASSERTED,
    ),
    "SandboxFusion: a check": Sample(
        "SandboxFusion",
        {"content": HEAD, "labels": {"entry_point": "add"}, "test": CHECK, "canonical_solution": BODY},
        {**_FUSION, "test": CHECK},
        "malformed",
        **ASSERTED,
    ),
}
