"""Agreement with recorded verdicts on real problems and real programs, where the data is at hand.

SANDBOX_AGREEMENT=all judges every submission; without it, a sample of some seconds.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Iterable
from typing import Any, Final

import pytest
from agreement import ALL, DATA, MARKS, limits
from wide import wide

from sandbox import Case, Judgement, Pool, Problem, Program, ToolchainMissing, Verdict

pytestmark = MARKS

AC, WA, TLE, MLE, RE, CE = Verdict.AC, Verdict.WA, Verdict.TLE, Verdict.MLE, Verdict.RE, Verdict.CE
Row = dict[str, Any]


def rows(name: str) -> list[Row]:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        return [json.loads(line) for line in file]


def judge_all(pairs: Iterable[tuple[Problem, Program]], *, stop: bool = True) -> list[Judgement | None]:
    """None where a toolchain is not installed."""

    async def one(pool: Pool, pair: tuple[Problem, Program]) -> Judgement | None:
        try:
            return await pool.judge(*pair)
        except ToolchainMissing:
            return None

    async def main() -> list[Judgement | None]:
        async with Pool(stop_at_first_failure=stop) as pool:
            return list(await asyncio.gather(*(one(pool, pair) for pair in pairs)))

    return asyncio.run(main())


def humaneval(row: Row) -> Problem:
    test = row["test"] + f"\ncheck({row['entry_point']})"
    return Problem(row["task_id"], "assert", (Case(test),), limits=limits(15))


def mbpp(row: Row) -> Problem:
    tests = "\n".join([row["test_setup_code"], *row["test_list"], *row["challenge_test_list"]])
    return Problem(str(row["task_id"]), "assert", (Case(tests),), limits=limits(15))


@pytest.mark.promise("honest")
def test_every_humaneval_reference_is_accepted() -> None:
    data = rows("humaneval/HumanEval.jsonl.gz")
    done = judge_all((humaneval(row), Program(row["prompt"] + row["canonical_solution"])) for row in data)
    assert [(d.problem_id, d.verdict, d.cases) for d in done if d.verdict is not AC] == []
    assert sum(d.weak for d in done) <= 3  # a helper in the prompt, which is the program's here


@pytest.mark.wide
def test_every_mbpp_reference_is_accepted() -> None:
    data = rows("mbpp/mbpp.jsonl")
    done = judge_all((mbpp(row), Program(row["code"].replace("\r", ""))) for row in data)
    assert [(d.problem_id, d.verdict, d.cases) for d in done if d.verdict is not AC] == []
    # a function that is named like a builtin, and classes beside a function, where nothing says what is asked for
    assert {d.problem_id for d in done if d.weak} == {"126", "367", "601", "927"}


@pytest.mark.promise("honest")
@pytest.mark.parametrize(
    ("name", "known"),
    [
        wide("humaneval_seed_starcoder_seed.jsonl", 2),  # recorded as passing, fail on a plain rerun as well
        ("mbpp_seed_starcoder_seed.jsonl", 0),
    ],
)
def test_recorded_verdicts_of_model_programs_are_met(name: str, known: int) -> None:
    data = rows(f"llm_samples_labelled/{name}")[:150]
    pairs = []
    for row in data:
        test = (
            row["test"] if "check(" in row["test"].splitlines()[-1] else f"{row['test']}\ncheck({row['entry_point']})"
        )
        pairs.append((Problem(row["task_id"], "assert", (Case(test),), limits=limits(2)), Program(row["solution"])))
    done = judge_all(pairs)
    recorded = [bool(row.get("is_passing", row.get("is_solved"))) for row in data]
    wrong = [
        (d.problem_id, d.verdict, want, d.cases)
        for d, want in zip(done, recorded, strict=True)
        if (d.verdict is AC) is not want
    ]
    assert len(wrong) <= known, wrong


# --- APPS -------------------------------------------------------------------------------------------------------------

PREAMBLE: Final = """
import bisect, collections, functools, heapq, itertools, math, random, re, string, sys, time
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from typing import *
"""
# CodeRL's labels: True passed, False failed, -1 runtime error or timeout in any test, -2 compile error (or on import)
LABELS: Final = {"True": {AC}, "False": {WA}, "-1": {RE, TLE, MLE}, "-2": {CE, RE}}


def unwrapped(expected: Any) -> Any:
    """APPS takes a list of one for its item as well."""
    return expected[0] if isinstance(expected, list) and len(expected) == 1 else expected


def apps(name: str) -> tuple[Problem, list[Row]]:
    folder = DATA / "apps_sample" / "train" / name
    tests = json.loads((folder / "input_output.json").read_text())
    fn_name = tests.get("fn_name")
    pairs = list(zip(tests["inputs"], tests["outputs"], strict=True))
    if fn_name:
        cases = tuple(Case(json.dumps(given), json.dumps(unwrapped(expected))) for given, expected in pairs)
    else:
        cases = tuple(Case(given, expected) for given, expected in pairs)
    kind = "function" if fn_name else "stdio"
    judged = Problem(name, kind, cases, fn_name, PREAMBLE, "tokens", limits(6 if ALL else 1))
    labelled = json.loads((folder / "gen_solutions.json").read_text())
    human = [{"code": code, "result": True} for code in json.loads((folder / "solutions.json").read_text())]
    return judged, labelled + human if ALL else labelled[:6] + human[:2]


@pytest.mark.promise("honest")
@pytest.mark.parametrize("name", ["0001", *map(wide, ["0111", "2287", "2404", "4184"])])
def test_the_labels_of_apps_programs_are_met(name: str) -> None:
    judged, labelled = apps(name)
    done = judge_all(((judged, Program(row["code"])) for row in labelled), stop=False)
    wrong = []
    for row, result in zip(labelled, done, strict=True):
        assert result is not None
        in_function = "'return' outside function" in result.compile_log  # APPS runs a program inside a function
        seen = {case.verdict for case in result.cases if case.verdict is not AC} or {result.verdict}
        if not seen & LABELS[str(row["result"])] and not in_function:
            wrong.append((result.verdict, row["result"], row.get("error_type"), result.cases, row["code"][-600:]))
    assert wrong == []


# --- SandboxFusion's samples ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["code_contests", wide("sf"), wide("tokens")])
def test_an_answer_to_nothing_solves_no_contest_problem(mode: str) -> None:
    pairs = []
    for row in rows("sandboxfusion_samples/code_eval_code_contests.jsonl"):
        tests = json.loads(row["test"])
        cases = tuple(Case(test["input"]["stdin"], test["output"]["stdout"]) for test in tests)
        pairs.append((Problem(str(row["id"]), "stdio", cases, compare=mode, limits=limits(2)), Program("print()")))
    assert {result.verdict for result in judge_all(pairs) if result} == {WA}
