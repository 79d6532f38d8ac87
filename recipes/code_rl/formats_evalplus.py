"""EvalPlus as its own releases have it (HumanEvalPlus.jsonl): inputs, and a solution that says what they should give.

    {task_id, prompt, entry_point, canonical_solution, base_input, plus_input, atol, contract}

Two cases: HumanEval's inputs, and the inputs that EvalPlus adds. The hub's sets (evalplus/humanevalplus, mbppplus) have
tests with results instead, and are read as HumanEval and MBPP.
"""

from __future__ import annotations

import json
import re

from overlap.rows.row import SourceRow
from recipes.code_rl.cases import Judging
from recipes.code_rl.core import UNJUDGEABLE, CodeProblem
from recipes.code_rl.formats_assert import completion
from sandbox.core.nouns import Case

_FLOAT = 1e-6
"""Tolerance where floats are expected and the row names none."""
_TEST = """
import copy, json
def _reference():
    inside = {}
    exec(SOURCE, inside)
    return inside[NAME]
def _same(got, wanted, atol):
    if got == wanted:
        return True
    if isinstance(wanted, (list, tuple)):
        return len(got) == len(wanted) and all(_same(g, w, atol) for g, w in zip(got, wanted))
    if isinstance(wanted, (int, float)) and isinstance(got, (int, float)) and (atol or isinstance(wanted, float)):
        return abs(got - wanted) <= (atol or FLOAT) + 1e-7 * abs(wanted)
    return False
def check(candidate):
    reference = _reference()
    for given in json.loads(INPUTS):
        wanted = reference(*copy.deepcopy(given))
        assert _same(candidate(*copy.deepcopy(given)), wanted, ATOL)
check(CALLED)
"""
_ZERO = """
import copy, json
def check(candidate):
    for given in json.loads(INPUTS):
        at = candidate(*copy.deepcopy(given))
        assert abs(sum(factor * at**power for power, factor in enumerate(given[0]))) <= ATOL
check(CALLED)
"""
"""``find_zero`` has several right answers: any root of the polynomial will do."""


def read_evalplus(row: SourceRow, judging: Judging) -> CodeProblem:
    """MBPP+'s release has lost its tuples in JSON, and is refused: the hub's rows have them."""
    id, prompt, name = row.id("task_id"), row.text("prompt"), row.text("entry_point")
    if id.lower().startswith("mbpp/"):
        way_out = "in this release tuples have become lists; take evalplus/mbppplus from the hub"
        raise row.fault(id, way_out, UNJUDGEABLE)
    solution = row.text("canonical_solution")
    atol = row.values.get("atol") or 0
    if not isinstance(atol, int | float):
        raise row.fault(atol, "atol must be a number")
    inputs = [row.parsed(column) for column in ("base_input", "plus_input")]
    if not all(isinstance(given, list) for given in inputs):
        raise row.fault(inputs, "base_input and plus_input must be lists of arguments")
    cases = [Case(_test(name, prompt + solution, given, atol)) for given in inputs if given]
    if not cases:
        raise row.without_tests()
    return completion(row, judging, id, cases, solution)


def _test(name: str, solution: str, inputs: list[object], atol: float) -> str:
    text = _ZERO if name == "find_zero" else _TEST
    values = {"SOURCE": solution, "NAME": name, "INPUTS": json.dumps(inputs), "ATOL": atol, "FLOAT": _FLOAT}
    shown = {word: repr(value) for word, value in values.items()} | {"CALLED": name}
    return re.sub(rf"\b({'|'.join(shown)})\b", lambda found: shown[found[0]], text)
