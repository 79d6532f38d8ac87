"""Problems that cannot be judged are refused when they are made."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from sandbox import Case, InvalidProblem, Judgement, Limits, Problem, SandboxError, Verdict
from sandbox.core.nouns import CaseResult
from sandbox.errors import WorkerDied, from_wire, to_wire

ONE = (Case("", "1"),)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"cases": ()}, "cases=()"),
        ({"kind": "quiz"}, "kind='quiz'"),
        ({"cases": (Case(""),)}, "expected=null"),
        ({"cases": (Case("", ""), Case("", " \n"))}, "blank"),
        ({"cases": (Case(3, "1"),)}, "text"),
        ({"compare": "vibes"}, "compare='vibes'"),
        ({"compare": "float(2)"}, "compare='float(2)'"),
        ({"kind": "function"}, "fn_name=None"),
        ({"kind": "function", "fn_name": "a.b.c"}, "fn_name='a.b.c'"),
        ({"kind": "function", "fn_name": "f", "cases": (Case("{}", "1"),)}, "JSON list"),
        ({"kind": "function", "fn_name": "f", "cases": (Case("[1", "1"),)}, "not JSON"),
        ({"kind": "function", "fn_name": "f", "cases": (Case("[1]", "one"),)}, "not JSON"),
        ({"kind": "assert", "cases": (Case("assert f(", None),)}, "not Python"),
        ({"kind": "assert", "cases": (Case("f(1)", None),)}, "no assert"),
        ({"kind": "assert", "cases": (Case("assert f(1)", "1"),)}, "must be null"),
    ],
)
def test_a_problem_that_could_not_tell_right_from_wrong_is_refused(fields: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidProblem) as caught:
        Problem(**{"id": "p", "kind": "stdio", "cases": ONE, **fields})
    assert word in str(caught.value)
    assert isinstance(caught.value, ValueError | SandboxError)


@pytest.mark.parametrize(
    "fields",
    [{"cpu_s": 0}, {"cpu_s": float("inf")}, {"memory_bytes": 1.5}, {"wall_s": -1}, {"processes": True}, {"cpu_s": "4"}],
)
def test_limits_that_limit_nothing_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidProblem, match=r"limits\."):
        Limits(**fields)


def test_the_wall_limit_follows_the_cpu_limit() -> None:
    assert Limits(cpu_s=2).wall_limit_s == 8
    assert Limits(cpu_s=2, wall_s=3).wall_limit_s == 3


def test_a_problem_survives_json() -> None:
    problem = Problem("p", "function", (Case("[1]", "2"),), "Solution.f", "import math", "float(1e-6)", Limits(cpu_s=1))
    assert Problem.from_json(json.loads(json.dumps(problem.to_json()))) == problem


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ([], "object"),
        ({"id": "p", "kind": "stdio"}, "'cases' is missing"),
        ({"id": "p", "kind": "stdio", "cases": [], "tests": []}, "unknown key 'tests'"),
        ({"id": "p", "kind": "stdio", "cases": [{"input": "", "output": "1"}]}, "unknown key 'output'"),
        ({"id": "p", "kind": "stdio", "cases": {}}, "list"),
        ({"id": "p", "kind": "stdio", "cases": [{"input": "", "expected": "1"}], "limits": {"ram": 1}}, "'ram'"),
    ],
)
def test_a_malformed_problem_file_is_refused_by_name(data: Any, word: str) -> None:
    with pytest.raises(InvalidProblem, match=word):
        Problem.from_json(data)


def test_a_judgement_survives_json() -> None:
    case = CaseResult(0, Verdict.WA, 0.1, 0.2, 3, "wrong output")
    judgement = Judgement("p", Verdict.WA, (case,), 0, 2, False, "A", "python", "cpython 3.11", "", 0.0, 0.1)
    for made in (judgement, replace(judgement, node="n1")):
        written = json.loads(json.dumps(made.to_json()))
        assert Judgement.from_json(written) == made
        assert ("node" in written) == bool(made.node)  # one machine says nothing of others


def test_errors_keep_their_type_and_text_across_processes() -> None:
    back = from_wire(json.loads(json.dumps(to_wire(WorkerDied("gone")))))
    assert type(back) is WorkerDied
    assert str(back) == "gone"
    assert type(from_wire(to_wire(KeyError("k")))) is SandboxError


def test_importing_the_package_takes_neither_long_nor_asyncio() -> None:
    code = "import sys, time; t = time.process_time(); import sandbox; t -= time.process_time(); "
    code += "print(-t, 'asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    seconds, heavy = done.stdout.split()
    assert heavy == "False"
    assert float(seconds) < 1.0  # about 0.03; the bound only catches a heavy import
