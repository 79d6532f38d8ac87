"""HumanEval-X: every canonical solution is accepted, and the same with its body gutted is not, in five languages.

A sample by default; all of it with SANDBOX_AGREEMENT=all.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
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
Parts = tuple[str, str, str]  # preamble, program, test

# Not the judge's doing: these fail wherever they run.
NOISE = {
    "CPP/22": "includes boost, which is not part of the language",
    "CPP/137": "includes boost, which is not part of the language",
    "CPP/162": "links openssl, which is not part of the language",
    "Go/95": "its own solution depends on the order of a map, which Go chooses anew in each run",
    "JavaScript/112": "its own solution fails its test: it returns (z, false), which is false; node only prints so",
    "JavaScript/155": "its own solution fails its test: an assert on another result; node only prints so",
    "JavaScript/162": "requires js-md5, which is not part of the language",
}

pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data/humaneval_x"),
    pytest.mark.timeout(7200 if EVERY == 1 else 300),
]


def whole(row: Row, body: str) -> Parts:
    return "", row["prompt"] + body, row["test"]


GO_SHIM = """
type shimAssert struct{}
var assert shimAssert
func (a shimAssert) New(t *testing.T) shimAssert { return a }
func (a shimAssert) Equal(want, got any, _ ...any) bool {
    if !shimReflect.DeepEqual(want, got) { panic("not equal") }
    return true
}
"""


def go(row: Row, body: str) -> Parts:
    """With the imports it needs (some rows lack them), a main that calls the test, and an `assert` like testify's."""
    code = row["prompt"].replace(row["import"], "", 1) + body + row["test"]
    named = sorted(
        {*re.findall(r'"([\w/]+)"', row["import"] + row["test_setup"]), "math", "sort", "strconv", "strings"}
    )
    used = [f'"{name}"' for name in named if re.search(rf"\b{name.rpartition('/')[2]}\.[A-Z]", code)]
    preamble = "package main\nimport (\n" + "\n".join([*used, 'shimReflect "reflect"']) + "\n)\n"
    name = re.findall(r"func (Test\w+)", row["test"])[0]
    program = row["prompt"].replace(row["import"], "", 1) + body
    return preamble, program, f"{row['test']}\n{GO_SHIM}\nfunc main() {{ {name}(new(testing.T)) }}\n"


def gut_java(row: Row) -> str:
    kind = re.findall(r"public (?:static )?([\w<>\[\], ]+) \w+\(", row["declaration"])[-1]
    value = "false" if kind == "boolean" else "0" if kind in ("int", "long", "double") else "null"
    return f"        return {value};\n    }}\n}}\n"


def gut_go(row: Row) -> str:
    head = row["declaration"].strip().splitlines()[-1]
    kinds = head[head.rindex(")", 0, head.rindex(")") if head.rstrip(" {").endswith(")") else len(head)) + 1 :]
    kinds = kinds.strip(" {()")
    zeros = ", ".join(f"*new({kind.split()[-1]})" for kind in kinds.split(","))
    return f"    if true {{ return {zeros} }}\n{row['canonical_solution']}"  # whose imports stay in use


SUITES: dict[str, tuple[str, Callable[[Row, str], Parts], Callable[[Row], str]]] = {
    "python": ("python", whole, lambda row: "    return None\n"),
    "cpp": ("cpp", whole, lambda row: "    return {};\n}\n"),
    "java": ("java", whole, gut_java),
    "javascript": ("js", whole, lambda row: "  return undefined\n}\n"),
    "go": ("go", go, gut_go),
}


def load(name: str) -> list[Row]:
    with gzip.open(DATA / f"humaneval_{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def verdict(judge: Judge, language: str, parts: Parts) -> tuple[Verdict, Any]:
    preamble, program, test = parts
    problem = Problem("p", "assert", (Case(test),), preamble=preamble, language=language, limits=LIMITS)
    done = judge.judge(problem, Program(program, language))
    return done.verdict, (done.compile_log[:500], done.cases)


@pytest.mark.parametrize("language", [each if each == "javascript" else wide(each) for each in SUITES])
def test_every_canonical_solution_is_accepted_and_no_gutted_one_is(judge: Judge, language: str) -> None:
    need(language)
    name, put_together, gut = SUITES[language]
    wrong = []
    rows = [row for row in load(name)[::EVERY] if row["task_id"] not in NOISE]
    for row in rows:
        right, why = verdict(judge, language, put_together(row, row["canonical_solution"]))
        if right is not Verdict.AC:
            wrong.append((row["task_id"], right, why))
        broken, why = verdict(judge, language, put_together(row, gut(row)))
        if broken not in (Verdict.WA, Verdict.RE):
            wrong.append((row["task_id"], "gutted", broken, why))
    print(f"{language}: {len(rows)} canonical and {len(rows)} gutted programs, {len(wrong)} not as wanted")
    assert not wrong, wrong
