"""HumanEval-X: every canonical solution is accepted, and the same with its body gutted is not, in three languages.

A sample by default; all of it with SANDBOX_AGREEMENT=all.
"""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from agreement import ALL
from places import SHARED
from toolchains import need
from wide import wide

from sandbox import Case, Limits, Problem, Program, Verdict
from sandbox.core.nouns import MIB
from sandbox.judging.judge import Judge

DATA = SHARED / "humaneval_x"
EVERY = 1 if ALL else 40
LIMITS = Limits(cpu_s=20, wall_s=120, memory_bytes=1024 * MIB)
Row = dict[str, str]

# Not the judge's doing: these fail wherever they run.
NOISE = {
    "CPP/22": "includes boost, which is not part of the language",
    "CPP/137": "includes boost, which is not part of the language",
    "CPP/162": "links openssl, which is not part of the language",
    "JavaScript/112": "its own solution fails its test: it returns (z, false), which is false; node only prints so",
    "JavaScript/155": "its own solution fails its test: an assert on another result; node only prints so",
    "JavaScript/162": "requires js-md5, which is not part of the language",
}

pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data/humaneval_x"),
    pytest.mark.timeout(7200 if EVERY == 1 else 300),
]


# the name in the data, and a body that does nothing
SUITES = {
    "python": ("python", "    return None\n"),
    "cpp": ("cpp", "    return {};\n}\n"),
    "javascript": ("js", "  return undefined\n}\n"),
}


def load(name: str) -> list[Row]:
    with gzip.open(DATA / f"humaneval_{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def verdict(judge: Judge, language: str, row: Row, body: str) -> tuple[Verdict, Any]:
    problem = Problem("p", "assert", (Case(row["test"]),), language=language, limits=LIMITS)
    done = judge.judge(problem, Program(row["prompt"] + body, language))
    return done.verdict, (done.compile_log[:500], done.cases)


@pytest.mark.parametrize("language", [each if each == "javascript" else wide(each) for each in SUITES])
def test_every_canonical_solution_is_accepted_and_no_gutted_one_is(judge: Judge, language: str) -> None:
    need(language)
    name, gutted = SUITES[language]
    wrong = []
    rows = [row for row in load(name)[::EVERY] if row["task_id"] not in NOISE]
    for row in rows:
        right, why = verdict(judge, language, row, row["canonical_solution"])
        if right is not Verdict.AC:
            wrong.append((row["task_id"], right, why))
        broken, why = verdict(judge, language, row, gutted)
        if broken not in (Verdict.WA, Verdict.RE):
            wrong.append((row["task_id"], "gutted", broken, why))
    print(f"{language}: {len(rows)} canonical and {len(rows)} gutted programs, {len(wrong)} not as wanted")
    assert not wrong, wrong
