"""Agreement with contest packages and labelled programs: what their authors recorded is what we say.

SANDBOX_AGREEMENT=all judges every submission; without it, a sample of some seconds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

import pytest
from packages import ALL, DATA, Submission, limits, problem, submissions
from wide import wide

from sandbox import Case, InvalidProblem, Judgement, Pool, Problem, Program, Subtask, ToolchainMissing, Verdict

pytestmark = [
    pytest.mark.shared,
    pytest.mark.timeout(900 if ALL else 120),
    pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not here"),
]

KATTIS: Final = DATA / "kattis_problemtools"
KODSPORT: Final = DATA / "kodsport_olympiad"
AC, WA, TLE, MLE, RE, CE = Verdict.AC, Verdict.WA, Verdict.TLE, Verdict.MLE, Verdict.RE, Verdict.CE
CLAIMS: Final = {
    "accepted": {AC},
    "slow_accepted": {AC, TLE},
    "wrong_answer": {WA},
    "time_limit_exceeded": {TLE},
    "run_time_error": {RE, MLE},  # Kattis counts the memory limit as a runtime error
}


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


def sample(items: Sequence[Submission], *names: str) -> Sequence[Submission]:
    return items if ALL else [item for item in items if item.name.partition("/")[2] in names]


def grades(judged: Problem, done: Judgement) -> list[str]:
    """One verdict per subtask: that of its first case that failed."""
    found = {subtask.name: "AC" for subtask in judged.subtasks}
    for case in reversed(done.cases):
        group = judged.cases[case.index].group
        if group and case.verdict is not AC:
            found[group] = case.verdict.value
    return list(found.values())


def disagreements(items: Sequence[Submission], judged: Problem) -> dict[str, str]:
    done = judge_all((judged, item.program) for item in items)
    return {
        item.name: f"{result.verdict} {[case for case in result.cases if case.verdict is not AC][:1]}"
        for item, result in zip(items, done, strict=True)
        if result and result.verdict not in CLAIMS[item.claimed]
    }


# --- Kattis' examples -------------------------------------------------------------------------------------------------


def test_hello() -> None:
    items = sample(submissions(KATTIS / "hello"), "accepted/hello.py", "wrong_answer/hello.cc")
    assert disagreements(items, problem(KATTIS / "hello", limits=limits(4))) == {}


DIFFERENT: Final = """
import sys
given, answer, feedback = sys.argv[1:]
want = [abs(a - b) for a, b in (map(int, line.split()) for line in open(given))]
try:
    found = [int(token) for token in sys.stdin.read().split()]
except ValueError:
    sys.exit(43)
sys.exit(42 if found == want else 43)
"""


@pytest.mark.wide
def test_different_with_a_checker() -> None:
    judged = problem(
        KATTIS / "different", compare="checker", checker=Program(DIFFERENT), convention="kattis", limits=limits(2)
    )
    items = sample(submissions(KATTIS / "different"), "accepted/different.cc", "wrong_answer/different_int.cc")
    assert disagreements(items, judged) == {}


GUESS: Final = """
import random, sys
mode, number = open(sys.argv[1]).read().split()
low, high = 1, 1000
secret = int(number) if mode == "fixed" else random.Random(int(number)).randint(1, 1000)
for turn in range(10):
    line = sys.stdin.readline()
    try:
        guess = int(line)
    except ValueError:
        sys.exit(43)
    if not 1 <= guess <= 1000:
        sys.exit(43)
    if mode == "adaptive":  # the larger part stays possible
        secret = guess if low == high == guess else guess + 1 if high - guess > guess - low else guess - 1
        secret = min(max(secret, low), high)
    if guess == secret:
        print("correct", flush=True)
        sys.exit(43 if sys.stdin.readline() else 42)  # nothing more may be said
    if guess > secret:
        high = min(high, guess - 1)
    else:
        low = max(low, guess + 1)
    print("lower" if guess > secret else "higher", flush=True)
sys.exit(43)
"""


def test_guess_with_an_interactor() -> None:
    fields = {"kind": "interactive", "interactor": Program(GUESS), "convention": "kattis", "limits": limits(1)}
    judged = problem(KATTIS / "guess", compare="tokens", **fields)
    names = ("accepted/guess.cc", "wrong_answer/guess_tle.cc", "run_time_error/guess_rte_after_correct.cc")
    items = sample(submissions(KATTIS / "guess"), *names, "wrong_answer/guess.py")
    assert disagreements(items, judged) == {}


@pytest.mark.wide
def test_oddecho_with_subtasks() -> None:
    judged = problem(KATTIS / "oddecho", limits=limits(4))
    assert judged.subtasks == (Subtask("subtask1", 50), Subtask("subtask2", 50))
    items = submissions(KATTIS / "oddecho")
    for item, done in zip(items, judge_all((judged, item.program) for item in items), strict=True):
        assert done is not None
        partial = item.claimed == "partially_accepted"
        assert (done.score, done.verdict is AC) == ((0.5, False) if partial else (1, True)), item.name


# --- the Swedish olympiad ---------------------------------------------------------------------------------------------

KNOWN_NOISE: Final = {
    "po2022_skolkval_bergskedja/partially_accepted/nils_backtrack.cpp": "only the samples are here, and it passes them",
    "po2022_skolkval_bergskedja/partially_accepted/nils_broken.cpp": "only the samples are here, and it passes them",
    "po2022_skolkval_kortavokaler/partially_accepted/brute_force.cpp": "only the samples are here, and it passes them",
    "training_training_kontrollsiffra/accepted/js.py": "Python 2",
    "training_training_lagomvinkladehard/time_limit_exceeded/uppg1.cpp": "takes 4 s; a faster machine may accept it",
    "training_training_telefonkatalog/accepted/telefonkatalog.cpp": "needs a grader's header that is not here",
}
QUICK: Final = ("joakim_n2.cc", "joakim_small.cc", "joshua_noeq.cpp", "nils.py", "incorrect.cpp", "wa.cpp")
SHORT: Final = {"RTE": "RE"}


def kodsport() -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (KODSPORT / "TRUTH.jsonl").read_text().splitlines()]
    return rows if ALL else [row for row in rows if row["submission"].rpartition("/")[2] in QUICK]


def agrees(row: dict[str, Any], judged: Problem, done: Judgement) -> bool:
    if recorded := row.get("expected_grades"):
        found = grades(judged, done)
        return not found or found == [SHORT.get(grade, grade) for grade in recorded]
    if row["claimed"] == "partially_accepted":
        return done.verdict is not AC and (done.score > 0 or not judged.subtasks)
    return done.verdict in CLAIMS[row["claimed"]]


@pytest.mark.wide
def test_the_olympiads_recorded_verdicts_are_met_save_the_known_noise() -> None:
    pairs, rows = [], kodsport()
    for row in rows:
        package = KODSPORT / row["problem"]
        item = Submission(package, package / "submissions" / row["submission"], row["claimed"])
        slow = 15 if item.path.suffix == ".py" else 3
        pairs.append((problem(package, limits=limits(slow)), item.program))
    wrong = {}
    for row, (judged, _), done in zip(rows, pairs, judge_all(pairs), strict=True):
        assert done is not None
        if not agrees(row, judged, done):
            wrong[f"{row['problem']}/{row['submission']}"] = f"{done.verdict} {grades(judged, done)} {done.compile_log}"
    assert {name: text for name, text in wrong.items() if name not in KNOWN_NOISE} == {}


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
