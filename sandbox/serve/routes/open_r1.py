"""open-r1's routers (E2B's and Morph's): scripts whose last value is the reward.

POST /execute_batch   {scripts, languages, timeout, request_timeout}   ──▶ [{execution, exception_str, text}, ...]

open-r1 writes one script for each answer: a program, its tests, and a grader that starts the program with the machine's
own Python. Such a script is taken apart, and the program judged by us: that grader compares only as many lines as both
outputs have, so an output that stops early passes. Any other script runs as a cell of a notebook, where `python3` is
the interpreter of this server.
A script that could not be judged by a fault of ours has `execution` null, which is a reward of None.
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
import textwrap
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sandbox.core.nouns import SOURCE_BYTES_MAX, Program
from sandbox.core.problem import Problem
from sandbox.errors import InvalidProblem, SandboxError
from sandbox.rewards.outcome import share_of_cases
from sandbox.serve.answers import AsciiJson
from sandbox.serve.bodies import Json, Refused, read_json
from sandbox.serve.bounds import JOBS_MAX, RUN_S_MAX, SESSION_LIMITS
from sandbox.serve.openapi import post
from sandbox.serve.parsed_texts import TEXT_VALUES, count_values
from sandbox.serve.routes.shared import fields
from sandbox.serve.routes.shared.gather import all_of
from sandbox.serve.routes.shared.tracebacks import errors_of
from sandbox.serve.service import Service
from sandbox.session.sessions import ProgramSession

OPENAPI: Final = {
    "/execute_batch": post("open-r1: scripts whose last value is a reward", fields.schema("scripts"), {"type": "array"})
}
PYTHON: Final = frozenset({"python", "python3", "py"})
CPU_S: Final = 5.0
"""Of each test, as in open-r1's grader."""
_TEXTS: Final = re.compile(
    r'^([ \t]*(?:code_snippet = |test_cases = json\.loads\())("(?:[^"\\\n]|\\[^\n])*")(?=\)?[ \t]*$)', re.MULTILINE
)
"""Program and tests of a grader, a line each."""
_GRADER_CHARACTERS: Final = 64 << 10
"""Of the rest of it."""
_STARTS_PYTHON: Final = re.compile(r"python3|sys\.executable")


def routes(service: Service) -> list[Route]:
    """The routes of this module."""

    async def execute_batch(request: Request) -> Response:
        return AsciiJson(await _execute(service, await read_json(request)))

    return [Route("/execute_batch", execute_batch, methods=["POST"])]


async def _execute(service: Service, body: Json) -> list[Json]:
    scripts = fields.texts(body, "scripts")
    one = fields.text(body, "language", "python")
    languages = fields.texts(body, "languages", [one] * len(scripts))
    if len(languages) != len(scripts):
        raise Refused(422, f"languages: {len(languages)} for {len(scripts)} scripts: every script needs its language")
    if unknown := sorted(set(languages) - PYTHON):
        raise Refused(422, f"languages: {unknown[0]!r}: scripts are in python here")
    if len(scripts) > JOBS_MAX:
        raise Refused(413, f"scripts: {len(scripts)} of them; at most {JOBS_MAX} are taken")
    for number, script in enumerate(scripts):
        if len(script) > SOURCE_BYTES_MAX:
            raise Refused(413, f"scripts[{number}]: {len(script)} characters; at most {SOURCE_BYTES_MAX} are run")
    timeout_s = fields.above_zero(body, "timeout", 30.0, most=RUN_S_MAX)
    places = asyncio.Semaphore(4 * service.pool.workers)
    return await all_of(_one(service, script, timeout_s, places) for script in scripts)


async def _one(service: Service, script: str, timeout_s: float, places: asyncio.Semaphore) -> Json:
    async with places:
        try:
            return await _judge(service, script) or await _cell(service, script, timeout_s)
        except SandboxError as error:
            return {"execution": None, "exception_str": f"{type(error).__name__}: {error}", "text": None}


async def _judge(service: Service, script: str) -> Json | None:
    """Judge the program of a script of open-r1's; None for another script. Raises SandboxError, also for tests that say
    nothing of a program: their grader would.
    """
    found = await asyncio.to_thread(taken_apart, script)
    if found is None:
        return None
    code, tests = found
    problem: Problem = service.problem(
        {
            "id": "script",
            "kind": "stdio",
            "cases": [{"input": test.get("input"), "expected": test.get("output")} for test in tests],
            "limits": {"cpu_s": CPU_S},
        }
    )
    done = await service.pool.judge(problem, Program(code), stop_at_first_failure=False)
    return _executed(str(share_of_cases(done)), "", "", [])


def taken_apart(script: str) -> tuple[str, list[Json]] | None:
    """Program and tests of a script that is open-r1's grader; None for another script. Raises InvalidProblem."""
    if "evaluate_code(code_snippet, test_cases)" not in script:
        return None
    texts = dict[str, str]()

    def apart(found: re.Match[str]) -> str:
        texts[str(len(texts))] = found[2]
        return f'{found[1]}"{len(texts) - 1}"'

    if len(rest := _TEXTS.sub(apart, script)) > _GRADER_CHARACTERS:
        return None  # parsing it would hold every other client up
    try:
        tree = ast.parse(_dedented(rest)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    match tree:
        case [
            *_,
            ast.FunctionDef(name="evaluate_code"),
            ast.Assign([ast.Name("code_snippet")], ast.Constant(str(code))),
            ast.Assign(
                [ast.Name("test_cases")],
                ast.Call(ast.Attribute(ast.Name("json"), "loads"), [ast.Constant(str(packed))]),
            ),
            ast.Expr(ast.Call(ast.Name("evaluate_code"), [ast.Name("code_snippet"), ast.Name("test_cases")])),
        ]:
            pass
        case _:
            return None
    try:
        code, packed = (ast.literal_eval(texts[text]) if text in texts else text for text in (code, packed))
        if count_values(packed.encode("utf-8", "surrogatepass"), TEXT_VALUES) > TEXT_VALUES:
            return None
        tests = json.loads(packed)
    except SyntaxError:
        return None
    except (ValueError, RecursionError) as error:
        raise InvalidProblem(f"test_cases: are no JSON: {str(error)[:200]}") from None
    if not isinstance(tests, list) or not all(isinstance(test, dict) for test in tests):
        raise InvalidProblem("test_cases: must be a list of objects with input and output")
    if called := next((name for test in tests if (name := test.get("fn_name"))), None):
        raise InvalidProblem(f"test_cases: call the function {called!r}, which this grader cannot: all would get 0")
    return code, tests


def _dedented(script: str) -> str:
    """A script as a notebook takes it, which may be indented as a whole. Another stays as it is: a text in it may hold
    lines of blanks, which `textwrap.dedent` empties.
    """
    first = next((line for line in script.splitlines() if line.strip()), "")
    return textwrap.dedent(script) if first.startswith((" ", "\t")) else script


async def _cell(service: Service, script: str, timeout_s: float) -> Json:
    session = service.sessions.open()
    try:
        if _STARTS_PYTHON.search(script):
            await _check_starts(session)
        done = await session.execute(_dedented(script), timeout_s=min(timeout_s, SESSION_LIMITS.wall_limit_s))
    finally:
        await session.close()
    errors = errors_of(done.error)
    if done.ended is not None:
        errors = [
            {"ename": "TimeoutError" if done.ended == "timed out" else "Ended", "evalue": done.cause, "traceback": []}
        ]
    return _executed(done.value, done.stdout, done.stderr, errors)


async def _check_starts(session: ProgramSession) -> None:
    """Raises SandboxError where no program of a session can start Python: a grader would take that for a 0."""
    done = await session.execute("__import__('os').access(__import__('sys').executable, 1)")
    if done.value != "True":
        raise SandboxError(
            "the script starts python3, which no program can here: the interpreter of the server lies in a directory "
            "that is closed to other users; install it elsewhere, as below /opt, or start the server as another user"
        )


def _executed(value: str | None, stdout: str, stderr: str, errors: list[Json]) -> Json:
    error: Any = None
    if errors:
        (told,) = errors
        error = {"name": told["ename"], "value": told["evalue"], "traceback": "\n".join(told["traceback"])}
    results = [] if value is None else [{"is_main_result": True, "text": value}]
    logs = {"stdout": [stdout] if stdout else [], "stderr": [stderr] if stderr else []}
    execution = {"results": results, "logs": logs, "error": error, "execution_count": 1}
    return {"execution": execution, "exception_str": None, "text": value}
