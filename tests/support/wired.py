"""Labelled programs in the form in which other trainers hold them, and real clients that send them to a server."""

from __future__ import annotations

import ast
import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pooling
import pytest
from clients import CLIENTS
from places import ROOT, SHARED, SUPPORT

from sandbox import Pool, Problem, Program
from sandbox.rewards.calls import CONTEST_PREAMBLE

PROGRAMS = "OVERLAP_WIRE_PROGRAMS"
"""How many labelled programs a test sends; a few, where it is not set."""
_APPS = SHARED / "apps_sample" / "train"
_MBPP = SHARED / "llm_samples_labelled" / "mbpp_seed_starcoder_seed.jsonl"
CPU_S = 1
_LIMITS = {"cpu_s": CPU_S, "memory_bytes": 1 << 30}


@dataclass(frozen=True)
class Labelled:
    """A program, and its tests as verl's ground truth and as a problem of ours."""

    program: str
    truth: dict[str, Any]
    problem: Problem

    @property
    def answer(self) -> str:
        return f"This is it:\n\n```python\n{self.program}\n```\n"


if PROGRAMS in os.environ:
    pooling.DEADLINE_S = 1800.0


def needs(name: str) -> pytest.MarkDecorator:
    """Skips a test, before it starts a server, where the client is not installed."""
    reason = f"{name} is not below the folder that {CLIENTS} names: scripts/clients.sh installs it"
    return pytest.mark.skipif(not _python(name).exists(), reason=reason)


def _python(name: str) -> Path:
    return Path(os.environ.get(CLIENTS) or "/nowhere") / name / "bin" / "python"


async def told(name: str, url: str, jobs: list[dict[str, Any]], **more: Any) -> Any:
    """What a client says of these jobs: it runs in its own environment."""
    argv = [str(_python(name)), str(SUPPORT / "wire_clients" / f"ask_{name.replace('-', '_')}.py")]
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, err = await process.communicate(json.dumps({"url": url, "jobs": jobs, **more}).encode())
    except BaseException:
        process.kill()
        raise
    assert process.returncode == 0, err.decode()[-3000:]
    return json.loads(out.splitlines()[-1])


def labelled(default: int) -> list[Labelled]:
    """Programs of every kind in turn: that print, that are called, that are asserted."""
    count = int(os.environ.get(PROGRAMS, default))
    kinds = [_printing(), _called(), _asserted()]
    found: list[Labelled] = []
    while kinds and len(found) < count:
        for kind in list(kinds):
            if (one := next(kind, None)) is None:
                kinds.remove(kind)
            elif len(found) < count:
                found.append(one)
    return found


async def local_shares(pool: Pool, rows: list[Labelled]) -> list[float]:
    """The share of cases that pass, of each."""
    jobs = (pool.judge(row.problem, Program(row.program), stop_at_first_failure=False) for row in rows)
    return [done.share for done in await asyncio.gather(*jobs)]


def _problem(kind: str, cases: list[dict[str, Any]], **more: Any) -> Problem:
    return Problem.from_json({"id": "labelled", "kind": kind, "cases": cases, "limits": _LIMITS, **more})


def _programs(name: str) -> Iterator[tuple[dict[str, Any], str]]:
    tests = json.loads((_APPS / name / "input_output.json").read_text())
    for row in json.loads((_APPS / name / "gen_solutions.json").read_text()):
        yield tests, row["code"]


def _printing() -> Iterator[Labelled]:
    for name in ("0001", "0111", "2287"):
        for tests, code in _programs(name):
            pairs = list(zip(tests["inputs"], tests["outputs"], strict=True))
            cases = [{"input": given, "expected": wanted} for given, wanted in pairs]
            yield Labelled(code, tests, _problem("stdio", cases, compare="lines"))


def _called() -> Iterator[Labelled]:
    for name in ("4184", "2404"):
        for tests, code in _programs(name):
            if "print(" in code:  # verl compares all that such a program prints; the value alone counts here
                continue
            wrapped = all(isinstance(out, list) and len(out) == 1 for out in tests["outputs"])
            outputs = [json.dumps(out[0] if wrapped else out) for out in tests["outputs"]]
            cases = [{"input": json.dumps(i), "expected": o} for i, o in zip(tests["inputs"], outputs, strict=True)]
            inputs = ["\n".join(map(json.dumps, given)) for given in tests["inputs"]]
            truth = {"inputs": inputs, "outputs": outputs, "fn_name": tests["fn_name"]}
            yield Labelled(
                code, truth, _problem("function", cases, fn_name=tests["fn_name"], preamble=CONTEST_PREAMBLE)
            )


def _asserted() -> Iterator[Labelled]:
    with _MBPP.open() as file:
        for line in islice(file, 300):
            row = json.loads(line)
            body = ast.parse(row["test"]).body[0]
            assert isinstance(body, ast.FunctionDef)
            if not all(isinstance(each, ast.Assert) for each in body.body):
                continue
            asserts = [ast.unparse(each) for each in body.body]
            cases = [{"input": text} for text in asserts]
            yield Labelled(row["solution"], {"assert_case": asserts}, _problem("assert", cases))
