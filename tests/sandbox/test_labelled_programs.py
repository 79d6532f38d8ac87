"""Agreement with labelled programs of APPS and SandboxFusion: what was recorded is what the sandbox says.

SANDBOX_AGREEMENT=all judges every submission; without it, a sample of some seconds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

import pytest
from agreement import ALL, DATA, limits
from wide import wide

from sandbox import Case, InvalidProblem, Judgement, Pool, Problem, Program, ToolchainMissing, Verdict

pytestmark = [
    pytest.mark.shared,
    pytest.mark.timeout(900 if ALL else 120),
    pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not here"),
]

AC, WA, TLE, MLE, RE, CE = Verdict.AC, Verdict.WA, Verdict.TLE, Verdict.MLE, Verdict.RE, Verdict.CE


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


def apps(name: str) -> tuple[Problem, list[dict[str, Any]]]:
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


def fusion(name: str) -> list[dict[str, Any]]:
    path = DATA / "sandboxfusion_samples" / f"code_eval_{name}.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{**row, "labels": json.loads(row["labels"])} if isinstance(row.get("labels"), str) else row for row in rows]


def asserted(row: dict[str, Any], test: str, source: str) -> tuple[Problem, Program]:
    return Problem(str(row["id"]), "assert", (Case(test),), limits=limits(4)), Program(source.replace("\r", ""))


# Rows of shadow_humaneval whose own reference fails its own test, in a plain interpreter as well.
SHADOW_NOISE: Final = {
    "shortest": "the test uses a name that nobody defines",
    "poly_diff": "the test calls it with one argument, it takes two",
    "sort_even": "the test asks for sort_third",
    "reverse_odd": "the test asks for another order",
}


def fusion_references() -> list[tuple[Problem, Program]]:
    pairs = [
        asserted(row, "\n".join(row["test_list"]).replace("\r", ""), row["canonical_solution"])
        for row in fusion("mbpp")
    ]
    for row in fusion("shadow_humaneval_python"):
        test = f"{row['test']}\ncheck({row['labels']['entry_point']})"
        with suppress(InvalidProblem):  # one row's test is not Python
            pairs.append(asserted(row, test, row["content"] + row["canonical_solution"]))
    mbxp = [row for row in fusion("mbxp_v1_en") if row["labels"]["programming_language"] == "python"]
    return pairs + [asserted(row, json.loads(row["test"])["code"], row["canonical_solution"]) for row in mbxp]


@pytest.mark.wide
def test_the_references_of_sandboxfusions_samples_are_accepted() -> None:
    pairs = fusion_references()
    assert len(pairs) > 40
    done = judge_all(pairs)
    wrong = {program.source for (_, program), result in zip(pairs, done, strict=True) if not accepted(result)}
    assert len(wrong) == len(SHADOW_NOISE)
    assert all(any(f"def {name}(" in source for source in wrong) for name in SHADOW_NOISE)


def accepted(result: Judgement | None) -> bool:
    return result is not None and result.verdict is AC


@pytest.mark.parametrize("mode", ["code_contests", wide("sf"), wide("tokens")])
def test_an_answer_to_nothing_solves_no_contest_problem(mode: str) -> None:
    pairs = []
    for row in fusion("code_contests"):
        tests = json.loads(row["test"])
        cases = tuple(Case(test["input"]["stdin"], test["output"]["stdout"]) for test in tests)
        pairs.append((Problem(str(row["id"]), "stdio", cases, compare=mode, limits=limits(2)), Program("print()")))
    assert {result.verdict for result in judge_all(pairs) if result} == {WA}
