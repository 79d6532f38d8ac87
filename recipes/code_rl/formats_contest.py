"""Sets whose tests are inputs and outputs: contests, and functions called with arguments.

    DeepCoder           {problem, tests}                           agentica-org/DeepCoder-Preview-Dataset, rLLM's files
    APPS, TACO          {question, input_output}
    SYNTHETIC-1/2       {prompt, verification_info}                PrimeIntellect; open-r1's verifiable-coding-problems
    verl                {prompt, reward_model}                     Eurus-2-RL, and whatever was made for verl
    rStar-Coder         {question, inputs, outputs}                microsoft/rStar-Coder, the configs with tests

The shapes of the tests are in ``shapes``. A function name anywhere makes it a function problem, whatever the number of
tests.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from overlap.rows.row import SourceRow, Unusable
from recipes.code_rl import formats_assert
from recipes.code_rl.cases import CONTEST_COMPARE, Judging, refuse_other_languages
from recipes.code_rl.core import NO_CODE, REFERENCES_KEPT, CodeProblem
from recipes.code_rl.shapes import function_cases, function_name, pairs_of, stdio_cases
from sandbox.compare.modes import LISTED

_LEVELS = {"introductory": 1, "easy": 1, "interview": 2, "medium": 2, "competition": 3, "hard": 3}
LIVECODEBENCH = "lcb"
"""The mode that compares as LiveCodeBench's grader does, so that figures on its problems can be compared."""
_LIVECODEBENCH_TYPES = frozenset({"stdin", "functional"})
_IDS = ("id", "problem_id", "task_id", "question_id")


def read_deepcoder(row: SourceRow, judging: Judging) -> CodeProblem:
    return contest(row, judging, row.text("problem"), row.parsed("tests"))


def read_apps(row: SourceRow, judging: Judging) -> CodeProblem:
    """APPS leaves ``input_output`` empty where there are no tests."""
    if row.values.get("input_output") in ("", None):
        raise row.without_tests()
    return contest(row, judging, row.text("question"), row.parsed("input_output"))


def read_synthetic(row: SourceRow, judging: Judging) -> CodeProblem:
    """``verification_info`` holds {language, test_cases}, or in SYNTHETIC-2 {ground_truth}; other rows are no code."""
    info = row.parsed("verification_info")
    task = row.text("task_type", default="")
    if not isinstance(info, dict) or (task and "code" not in task) or task == "code_output_prediction":
        raise row.fault(task or type(info).__name__, "is no task in which a program is written", NO_CODE)
    refuse_other_languages(row, str(info.get("language") or "python"))
    for name in ("test_cases", "ground_truth", "tests"):
        if (tests := info.get(name)) is not None:
            tests = row.literal(tests, name) if isinstance(tests, str) else tests
            return contest(row, judging, user_text(row), tests)
    raise row.without_tests()


def read_verl(row: SourceRow, judging: Judging) -> CodeProblem:
    """``reward_model.ground_truth`` holds the tests as JSON text; a plain answer there belongs to another task."""
    model, ability = row.parsed("reward_model"), row.text("ability", default="")
    truth = model.get("ground_truth") if isinstance(model, dict) else None
    if ability and "cod" not in ability.lower():
        raise row.fault(ability, "is no task in which a program is written", NO_CODE)
    if isinstance(truth, str) and truth.lstrip()[:1] not in ("{", "["):
        raise row.fault(truth, "reward_model.ground_truth holds no tests", NO_CODE)
    tests = row.literal(truth, "ground_truth") if isinstance(truth, str) else truth
    if isinstance(tests, dict) and tests.get("entry_point") is not None:
        return formats_assert.read_harness(row, judging, user_text(row), tests)
    return contest(row, judging, user_text(row), tests)


def read_rstar(row: SourceRow, judging: Judging) -> CodeProblem:
    tests = {"inputs": row.parsed("inputs"), "outputs": row.parsed("outputs")}
    if not tests["inputs"]:
        raise row.without_tests()
    if name := row.text("func_name", default=""):
        named = [{"input": i, "output": o, "fn_name": name} for i, o in pairs_of(row, tests)]
        return contest(row, judging, row.text("question"), named)
    return contest(row, judging, row.text("question"), tests)


def contest(row: SourceRow, judging: Judging, statement: str, tests: Any, compare: str = "") -> CodeProblem:
    """A problem from tests of any shape; an Unusable where there are none. LiveCodeBench's are known by the types of
    their tests, in whatever set they are.
    """
    if isinstance(tests, dict) and tests.get("functional") is not None:
        return formats_assert.read_functional(row, judging, statement, tests["functional"])
    pairs = pairs_of(row, tests)
    if not pairs:
        raise row.without_tests()
    types = {test.get("testtype") for test in tests if isinstance(test, dict)} if isinstance(tests, list) else set()
    compare = compare or (LIVECODEBENCH if types and types <= _LIVECODEBENCH_TYPES else CONTEST_COMPARE)
    starter, references = row.text("starter_code", default=""), solutions(row)
    fn_name, id = function_name(row, tests), row.id(*_IDS)
    if fn_name is None:
        problem = judging.contest(row, id, "stdio", stdio_cases(row, pairs), compare=compare)
    else:
        cases, listed = function_cases(row, tests, pairs, (starter, statement, *references))
        compare += LISTED if listed else ""
        problem = judging.contest(row, id, "function", cases, _full_name(row, fn_name, starter), compare=compare)
    level = _LEVELS.get(str(row.values.get("difficulty", "")).lower(), 0)
    return CodeProblem(id, statement, problem, starter, references, level, row.place)


def _full_name(row: SourceRow, name: str, starter: str) -> str:
    """``Solution.f`` where the starter (or a column) says so. Elsewhere the sandbox takes a method of Solution too."""
    cls = row.text("class_name", default="") or ("Solution" if "class Solution" in starter else "")
    return f"{cls}.{name}" if cls and "." not in name else name


def user_text(row: SourceRow) -> str:
    """A prompt as text: itself, or the last turn of the user."""
    prompt = row.values.get("prompt")
    if isinstance(prompt, list):
        turns = [turn.get("content") for turn in prompt if isinstance(turn, dict) and turn.get("role") == "user"]
        if turns and isinstance(turns[-1], str):
            return turns[-1]
        raise row.fault(prompt, "prompt must be text, or messages with a turn of the user")
    return row.text("prompt")


def solutions(row: SourceRow) -> tuple[str, ...]:
    """Reference solutions by the columns that sets keep them in, without code fences; the first few."""
    for name in ("solutions", "gold_standard_solution", "solution"):
        if not (found := row.values.get(name)):
            continue
        if isinstance(found, str) and found.lstrip().startswith("["):
            with suppress(Unusable):  # then it is a program that begins with a list
                found = row.parsed(name)
        listed = found if isinstance(found, list) else [found]
        return tuple(unfenced(text) for text in listed if isinstance(text, str) and text.strip())[:REFERENCES_KEPT]
    return ()


def unfenced(text: str) -> str:
    """A program without the code fence that some sets store around it."""
    lines = text.strip().split("\n")
    fenced = len(lines) > 2 and lines[0].startswith("```") and lines[-1].strip() == "```"
    return "\n".join(lines[1:-1]) + "\n" if fenced else text
