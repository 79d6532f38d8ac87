"""open-instruct's routes (`CODE_API_URL`): a program, and tests that are asserts or pairs of input and output.

POST /test_program         {program, tests: [assert, ...], max_execution_time}              ──▶ {results, runtimes}
POST /test_program_stdio   {program, tests: [{input, output}, ...], max_execution_time}     ──▶ {results, runtimes}

Tests may be a list, JSON text, or packed as open-instruct packs them (pickle, zlib, base64); of a pickle only lists,
dicts and texts are read. Its client gives 0 for any error, so a failure of the sandbox costs its sample: see docs.
"""

from __future__ import annotations

import base64
import pickle
import pickletools
import zlib
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sandbox.core.nouns import MIB, Program, Verdict
from sandbox.serve.answers import AsciiJson
from sandbox.serve.bodies import Json, Refused, read_json
from sandbox.serve.bounds import RUN_S_MAX
from sandbox.serve.openapi import post
from sandbox.serve.routes.shared import fields
from sandbox.serve.service import Service

_ASKED: Final = fields.schema("program", "tests")
_FOUND: Final = fields.schema("results", "runtimes")
OPENAPI: Final = {
    "/test_program": post("open-instruct: a program and asserts", _ASKED, _FOUND),
    "/test_program_stdio": post("open-instruct: a program, inputs and outputs", _ASKED, _FOUND),
}
FULL: Final = dict.fromkeys(("/test_program", "/test_program_stdio"), 504)
_UNPACKED_MAX: Final = 64 * MIB
_NOT_PASSED: Final = -1.0
"""The time of a test that did not pass."""


def routes(service: Service) -> list[Route]:
    """The routes of this module."""

    async def by_asserts(request: Request) -> Response:
        body = await read_json(request)
        tests = fields.texts({"tests": tests_of(body.get("tests"))}, "tests")
        cases = [{"input": text} for text in tests]
        return AsciiJson(await _judge(service, body, {"kind": "assert", "cases": cases}))

    async def by_output(request: Request) -> Response:
        body = await read_json(request)
        tests = tests_of(body.get("tests"))
        cases = [_case(f"tests[{n}]", test) for n, test in enumerate(tests)]
        return AsciiJson(await _judge(service, body, {"kind": "stdio", "cases": cases, "compare": "lcb"}))

    return [
        Route("/test_program", by_asserts, methods=["POST"]),
        Route("/test_program_stdio", by_output, methods=["POST"]),
    ]


async def _judge(service: Service, body: Json, problem: Json) -> Json:
    seconds = fields.above_zero(body, "max_execution_time", 1.0, most=RUN_S_MAX)
    program = Program(fields.text(body, "program"))
    count = len(problem["cases"])
    if not count:
        return {"results": [], "runtimes": []}
    given = service.problem({"id": "tests", **problem, "limits": {"cpu_s": seconds}})
    done = await service.pool.judge(given, program, stop_at_first_failure=False)
    results, runtimes = [0] * count, [_NOT_PASSED] * count
    for case in done.cases:
        if case.verdict is Verdict.AC:
            results[case.index], runtimes[case.index] = 1, case.wall_s
    return {"results": results, "runtimes": runtimes}


def _case(where: str, test: Any) -> Json:
    if not isinstance(test, dict):
        raise fields.refusal(where, test, "an object with input and output")
    return {"input": fields.text(test, "input"), "expected": fields.text(test, "output")}


def tests_of(given: Any) -> list[Any]:
    """A list of tests, however it is packed. Raises Refused."""
    if isinstance(given, str) and given and given.lstrip()[:1] not in ("[", "{"):
        given = _unpacked(given)
    tests = fields.parsed("tests", given) if given else []
    if not isinstance(tests, list):
        raise fields.refusal("tests", tests, "a list")
    return tests


_BROKEN: Final = (ValueError, zlib.error, pickle.UnpicklingError, EOFError, LookupError, TypeError, AttributeError)
_OPCODES_MAX: Final = 200_000
_PLAIN: Final = frozenset(
    (
        *("PROTO", "FRAME", "STOP", "MARK", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"),
        *("EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"),
        *("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET"),
    )
)
"""Opcodes of lists, dicts and texts."""
_MEMO: Final = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})


def _check_pickle(data: bytes) -> None:
    """Raises UnpicklingError and ValueError for what is more than lists, dicts and texts: an opcode that looks a class
    or function up, or a place in the memo so far out that a few bytes would take all memory.
    """
    for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if opcode.name not in _PLAIN:
            raise pickle.UnpicklingError(f"it has the opcode {opcode.name} {argument!r:.100}")
        if number >= _OPCODES_MAX or (opcode.name in _MEMO and int(argument or 0) >= _OPCODES_MAX):
            raise pickle.UnpicklingError(f"it has more than {_OPCODES_MAX} values")


def _unpacked(text: str) -> list[Any]:
    """Texts, and objects of texts: a pickle may hold one list many times over, which no one may write out."""
    try:
        packed = zlib.decompressobj()
        data = packed.decompress(base64.b64decode(text, validate=True), _UNPACKED_MAX)
        if packed.unconsumed_tail:
            raise Refused(413, f"tests: more than {_UNPACKED_MAX} bytes when unpacked")
        _check_pickle(data)
        found = pickle.loads(data)
    except _BROKEN as error:
        raise Refused(422, f"tests: neither JSON nor a packed list: {str(error)[:200]}") from None
    if not isinstance(found, list) or not all(_is_plain(test) for test in found):
        raise Refused(422, "tests: a packed list must hold asserts, or objects whose values are texts")
    return found


def _is_plain(test: Any) -> bool:
    values = [*test, *test.values()] if isinstance(test, dict) else [test]
    return all(isinstance(value, str) for value in values)
