"""The shipped problem set: well-formed, solvable, not solvable by trivial programs, in its own words."""

from __future__ import annotations

import ast
import asyncio
import gzip
import json
import re
from collections import Counter
from typing import Any

import pytest
from places import ROOT, SHARED

import sandbox

PROBLEMS = ROOT / "recipes" / "code_rl" / "problems"
FIELDS = {"id", "kind", "level", "statement", "fn_name", "starter", "tests", "reference"}
SHARED_RUN = 10  # words in a row that count as a copied sentence

SourceRow = dict[str, Any]


def rows_of(name: str) -> list[SourceRow]:
    return [json.loads(line) for line in (PROBLEMS / name).read_text(encoding="utf-8").splitlines()]


EASY = rows_of("easy.jsonl")
CONTEST = rows_of("contest.jsonl")
ROWS = EASY + CONTEST


def duplicates(values: list[str]) -> list[str]:
    return [value for value, count in Counter(values).items() if count > 1]


def inputs(row: SourceRow) -> list[str]:
    return [test["input"] for test in row["tests"]]


def outputs(row: SourceRow) -> list[str]:
    return [test["output"] for test in row["tests"]]


def test_there_are_enough_problems_and_most_are_for_beginners() -> None:
    assert len(ROWS) >= 260
    assert sum(row["level"] == 1 for row in EASY) >= 120
    assert {row["level"] for row in ROWS} == {1, 2, 3, 4, 5}


def test_every_row_has_exactly_the_documented_fields_and_kinds() -> None:
    assert all(set(row) == FIELDS for row in ROWS)
    assert {row["kind"] for row in EASY} == {"function"}
    assert {row["kind"] for row in CONTEST} == {"stdio"}
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", row["id"]) for row in ROWS)
    assert all(set(test) == {"input", "output"} for row in ROWS for test in row["tests"])
    texts = [text for row in ROWS for test in row["tests"] for text in test.values()]
    assert all(isinstance(text, str) for text in texts)


def test_ids_statements_and_the_inputs_of_each_problem_are_distinct() -> None:
    assert duplicates([row["id"] for row in ROWS]) == []
    assert duplicates([" ".join(row["statement"].split()) for row in ROWS]) == []
    few = [row["id"] for row in ROWS if len(row["tests"]) < 5 or duplicates(inputs(row))]
    assert few == []


def test_statement_starter_reference_and_tests_agree_on_the_signature() -> None:
    for row in EASY:
        (function,) = ast.parse(row["reference"]).body
        assert isinstance(function, ast.FunctionDef)
        parameters = [argument.arg for argument in function.args.args]
        signature = f"{function.name}({', '.join(parameters)})"
        assert (function.name, row["starter"]) == (row["fn_name"], f"def {signature}:")
        assert f"`{signature}`" in row["statement"]
        assert all(len(json.loads(text)) == len(parameters) for text in inputs(row)), row["id"]


def test_the_example_in_every_function_statement_is_its_first_test() -> None:
    for row in EASY:
        found = re.search(r"For example, `(\w+)\((.*)\)` returns `(.*)`\.$", row["statement"], re.DOTALL)
        assert found is not None, row["id"]
        assert list(ast.literal_eval(f"({found[2]},)")) == json.loads(inputs(row)[0])
        assert ast.literal_eval(found[3]) == json.loads(outputs(row)[0])


def test_the_example_in_every_stdio_statement_is_its_first_test() -> None:
    for row in CONTEST:
        tail = f"Example input:\n{inputs(row)[0]}Example output:\n{outputs(row)[0].rstrip()}"
        assert row["statement"].endswith(tail), row["id"]


def test_no_program_with_a_constant_answer_solves_a_problem() -> None:
    assert [row["id"] for row in ROWS if len(set(outputs(row))) == 1] == []


def test_no_program_that_echoes_an_argument_or_its_input_solves_a_problem() -> None:
    for row in EASY:
        pairs = [(json.loads(test["input"]), json.loads(test["output"])) for test in row["tests"]]
        for position in range(len(pairs[0][0])):
            assert any(arguments[position] != answer for arguments, answer in pairs), row["id"]
    for row in CONTEST:
        assert any(test["input"].split() != test["output"].split() for test in row["tests"]), row["id"]


async def judge_references(rows: list[SourceRow]) -> list[tuple[str, str]]:
    """(id, what went wrong) of every reference that does not pass all of its tests."""

    async def failure(pool: sandbox.Pool, row: SourceRow) -> tuple[str, str] | None:
        cases = tuple(sandbox.Case(input=test["input"], expected=test["output"]) for test in row["tests"])
        problem = sandbox.Problem(id=row["id"], kind=row["kind"], cases=cases, fn_name=row["fn_name"])
        judgement = await pool.judge(problem, sandbox.Program(source=row["reference"]))
        passed = judgement.verdict == sandbox.Verdict.AC and judgement.passed == len(cases)
        return None if passed else (row["id"], f"{judgement.verdict} {judgement.passed}/{len(cases)}")

    async with sandbox.Pool() as pool:
        found = await asyncio.gather(*(failure(pool, row) for row in rows))
    return [item for item in found if item is not None]


def test_every_reference_passes_all_of_its_tests_in_the_sandbox_and_one_with_a_wrong_sign_does_not() -> None:
    (row,) = (row for row in EASY if row["id"] == "add")
    wrong = row | {"id": "wrong", "reference": row["reference"].replace("+", "-")}
    failures = asyncio.run(asyncio.wait_for(judge_references([*ROWS, wrong]), timeout=600))
    assert [identity for identity, _ in failures] == ["wrong"], failures


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def runs(text: str) -> set[tuple[str, ...]]:
    tokens = words(text)
    return {tuple(tokens[i : i + SHARED_RUN]) for i in range(len(tokens) - SHARED_RUN + 1)}


def public_statements() -> list[str]:
    mbpp, humaneval = SHARED / "mbpp" / "mbpp.jsonl", SHARED / "humaneval" / "HumanEval.jsonl.gz"
    if not (mbpp.is_file() and humaneval.is_file()):
        pytest.skip(f"no MBPP and HumanEval under {SHARED}")
    texts = [json.loads(line)["text"] for line in mbpp.read_text(encoding="utf-8").splitlines()]
    with gzip.open(humaneval, "rt", encoding="utf-8") as lines:
        return texts + [json.loads(line)["prompt"] for line in lines]


def test_no_statement_shares_a_long_run_of_words_with_mbpp_or_humaneval() -> None:
    public = set().union(*(runs(text) for text in public_statements()))
    assert len(public) > 1000
    shared = {row["id"]: runs(row["statement"]) & public for row in ROWS}
    assert {identity: found for identity, found in shared.items() if found} == {}
