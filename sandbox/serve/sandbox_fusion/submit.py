"""SandboxFusion's `/submit`: an answer judged against a problem that comes with the call.

    CommonOJDataset     {test: [{input: {stdin}, output: {stdout}}, ...]}
    HumanEvalDataset    {prompt, test, entry_point}, in Python; {prompt, tests, language} of MultiPL-E, in C++
    MBPPDataset         {test | test_list: [asserts], labels: {test_setup_code}}

Outputs are compared by our modes (`extra.compare`, by default tokens), not in lower case as SandboxFusion does
(`extra.compare` "sf"). Asserts decide by their values where that can be, not by an exit code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from sandbox.core.checks import quoted
from sandbox.core.nouns import CaseResult, Judgement, Program, Verdict
from sandbox.core.plain import python_literal
from sandbox.rewards.extract import fence_tags, fenced_blocks
from sandbox.serve.answers import Refused
from sandbox.serve.bounds import FENCES, LINES, MEMORY_BYTES, PYTHON_BYTES, TEXT_VALUES, count_values
from sandbox.serve.sandbox_fusion import run_code
from sandbox.serve.sandbox_fusion.models import (
    EvalResult,
    EvalTestCase,
    RunCodeResponse,
    SubmitRequest,
    TestConfig,
)  # fmt: skip
from sandbox.serve.service import Service

Row = Mapping[str, Any]
Kind = Literal["fenced", "incomplete_fenced", "heuristic", "empty"]
_NEXT_TOP_LEVEL: Final = re.compile(r"\n(?=[^\s#@)\]}])")
"""Place where a completion of a function's body goes on with something else."""


@dataclass(frozen=True, slots=True)
class _Asked:
    problem: dict[str, Any]
    program: Program
    code: str
    """Code as it was taken out of the answer."""
    kind: Kind
    tests: list[Any]
    """`test_info` of each."""


async def judge_answer(service: Service, asked: SubmitRequest) -> EvalResult:
    """The response of `/submit`. Raises Refused, InvalidProblem, SandboxError."""
    config = asked.config
    dataset = config.dataset_type or asked.dataset
    if config.custom_extract_logic:
        raise Refused(422, "config.custom_extract_logic: no code of a caller runs in this server; leave it out")
    if dataset not in _READERS:
        raise Refused(422, f"config.dataset_type={quoted(dataset)}: must be one of {', '.join(_READERS)}")
    run_s, read = _READERS[dataset]
    found = read(asked.completion, row_of(config, asked.id), config)
    limits = {"cpu_s": config.run_timeout or run_s, "memory_bytes": MEMORY_BYTES}
    problem = service.problem({**found.problem, "id": "submitted", "limits": limits})
    stop = not config.extra.get("run_all_cases", False)
    done = await service.pool.judge(problem, found.program, stop_at_first_failure=stop)
    return EvalResult(
        id=asked.id,
        accepted=done.verdict is Verdict.AC,
        extracted_code=found.code,
        tests=_tests(done, found.tests),
        extracted_type=found.kind,
        extra={"verdict": done.verdict.value, "passed": done.passed, "total": done.total, "weak": done.weak},
    )


def row_of(config: TestConfig, id: int | str | None) -> Row:
    """The problem's row: the only one, or that of this id. Raises Refused."""
    rows = rows_of(config)
    if isinstance(config.provided_data, list):
        rows = [row for row in rows if str(row_id(row)) == str(id)]
    if len(rows) != 1:
        raise Refused(422, f"config.provided_data: {len(rows)} rows have the id {quoted(id)}; it must be one")
    return rows[0]


def rows_of(config: TestConfig) -> list[Row]:
    """The rows that came with a request. Raises Refused."""
    given = config.provided_data
    if given is None:
        raise Refused(
            422, "config.provided_data: is missing: this server has no data sets; send the problem with the call"
        )
    rows: list[Row] = given if isinstance(given, list) else [given]
    if not all(isinstance(row, dict) for row in rows):
        raise Refused(422, f"config.provided_data={quoted(given)}: must be a row, or a list of rows")
    return rows


def row_id(row: Row) -> Any:
    """The id of a problem."""
    return row.get("id", row.get("task_id"))


def _tests(done: Judgement, infos: list[Any]) -> list[EvalTestCase]:
    if done.verdict is Verdict.CE:
        return [EvalTestCase(passed=False, exec_info=_not_compiled(done), test_info=infos[0])]
    return [
        EvalTestCase(passed=case.verdict is Verdict.AC, exec_info=_exec_info(done, case), test_info=infos[case.index])
        for case in done.cases
    ]


def _not_compiled(done: Judgement) -> RunCodeResponse:
    failed = run_code.not_compiled(done.compile_cause, done.run_s, done.compile_log)
    interpreted = run_code.is_interpreted(done.language)
    return run_code.response(None if interpreted else failed, failed if interpreted else None, "it does not compile")


def _exec_info(done: Judgement, case: CaseResult) -> RunCodeResponse:
    """Return what is known of the run: a case that passed printed what was expected, and is not shown."""
    interpreted = run_code.is_interpreted(done.language)
    compiled = None if interpreted else run_code.result("Finished", 0.0, 0, "", done.compile_log)
    out, err = (None if text is None else str(text) for text in (case.got, case.stderr))
    if case.verdict is Verdict.TLE:
        ran = run_code.result("TimeLimitExceeded", case.wall_s, None, out, err)
    else:
        code = 0
        if case.verdict in (Verdict.RE, Verdict.MLE, Verdict.OLE, Verdict.SEC):
            cause = "output" if case.verdict is Verdict.OLE else ""
            code = run_code.return_code(case.exit_code or None, case.signal, cause)
        ran = run_code.result("Finished", case.wall_s, code, out, err)
    return run_code.response(compiled, ran, case.message)


def extracted(completion: str, language: str) -> tuple[str, Kind]:
    """The program in an answer by SandboxFusion's rule, and how it was found: the first closed block of the language,
    or else the first closed one; else one that never closes. An answer in Python without fences is the program itself.
    Raises Refused for an answer whose fences take too long to be found.
    """
    fences = completion.count("```") + completion.count("~~~")
    if completion.count("\n") > LINES or fences > FENCES:
        raise Refused(413, f"completion: more than {LINES} lines or {FENCES} fences")
    blocks, tags = list(fenced_blocks(completion)), fence_tags(language)
    kinds: tuple[tuple[bool, Kind], ...] = ((True, "fenced"), (False, "incomplete_fenced"))
    for closed, kind in kinds:
        if found := [block for block in blocks if block.closed == closed]:
            return next((block for block in found if block.tag in tags), found[0]).code, kind
    if language == "python" and completion.strip():
        return completion, "heuristic"
    return "", "empty"


def _common_oj(completion: str, row: Row, config: TestConfig) -> _Asked:
    language, extra = run_code.fusion_language(config.language), config.extra
    tests = _parsed("provided_data.test", row.get("test"))
    if not isinstance(tests, list):
        raise Refused(422, f"provided_data.test={quoted(tests)}: must be a list of {{input, output}}")
    cases = [_oj_case(f"provided_data.test[{n}]", test) for n, test in enumerate(tests)]
    code, kind = extracted(completion, language)
    problem = {"kind": "stdio", "cases": cases, "compare": extra.get("compare") or "tokens"}
    whole = bool(extra.get("return_full_case"))
    infos = [test if whole else _shortened(test) for test in tests]
    return _Asked(problem, Program(code, language), code, kind, infos)


def _oj_case(where: str, test: Any) -> dict[str, str]:
    given, wanted = (test.get(name) if isinstance(test, dict) else None for name in ("input", "output"))
    if not isinstance(given, dict) or not isinstance(wanted, dict):
        raise Refused(422, f"{where}={quoted(test)}: must be an object with input and output")
    if others := sorted({*given, *wanted} - {"stdin", "stdout"}):
        raise Refused(422, f"{where}: {others[0]!r}: programs read stdin and write stdout here, no other files")
    return {"input": _text(given, "stdin", ""), "expected": _text(wanted, "stdout")}


def _shortened(test: dict[str, Any]) -> dict[str, Any]:
    return {part: {name: _beginning(text) for name, text in test[part].items()} for part in ("input", "output")}


def _beginning(text: str | None) -> str | None:
    return text if text is None or len(text) <= 1000 else f"{text[:1000]}..."


def _humaneval(completion: str, row: Row, config: TestConfig) -> _Asked:
    freeform = bool(config.extra.get("is_freeform"))
    prompt = _text(row, "prompt" if row.get("prompt") is not None else "content")
    language = run_code.fusion_language(_text(row, "language", "python"))
    if language not in ("python", "cpp"):
        raise Refused(422, f"provided_data.language={language!r}: HumanEvalDataset is judged in python and cpp here")
    if language == "cpp":
        tests, top = _text(row, "tests"), ""
    else:
        labels = _parsed("provided_data.labels", row.get("labels"))
        entry = _text({**(labels if isinstance(labels, dict) else {}), **row}, "entry_point")
        test = _text(row, "test")
        if "unittest" in test and "check" not in test:
            raise Refused(422, "provided_data.test: is a unittest class; this route calls check(entry_point)")
        tests = f"{test}\ncheck({entry})\n"
        start = re.search(rf"^(?:async )?def {re.escape(entry)}\b", prompt, re.MULTILINE)
        top = prompt[: start.start()] if start else ""
    code, kind = extracted(completion, language) if freeform else (_body(completion, row, language), "heuristic")
    source = code if freeform else f"{prompt}\n{code}"
    problem = {"kind": "assert", "cases": [{"input": tests}], "language": language, "preamble": top}
    return _Asked(problem, Program(source, language), code, kind, [None])


def _body(completion: str, row: Row, language: str) -> str:
    """A completion up to where the function's body ends."""
    if language == "python":
        end = _NEXT_TOP_LEVEL.search(completion)
        return completion[: end.start()] if end else completion
    for stop in _texts("provided_data.stop_tokens", row.get("stop_tokens") or []):
        if stop.strip() and not stop.startswith("re:"):
            completion = completion.partition(stop)[0]
    return completion


def _mbpp(completion: str, row: Row, config: TestConfig) -> _Asked:
    tests = row.get("test") if row.get("test") is not None else row.get("test_list")
    asserts = _texts("provided_data.test", _parsed("provided_data.test", tests, literal=True))
    labels = _parsed("provided_data.labels", row.get("labels"), literal=True)
    setup = _text(labels if isinstance(labels, dict) else {}, "test_setup_code", "")
    code, kind = extracted(completion, "python")
    text = "\n".join(filter(None, (setup, *asserts)))
    problem = {"kind": "assert", "cases": [{"input": text}]}
    return _Asked(problem, Program(code, "python"), code, kind, [None])


def _text(row: Row, name: str, default: str | None = None) -> str:
    """A text of a row. Raises Refused, as all of these."""
    value = default if row.get(name) is None else row[name]
    if not isinstance(value, str):
        raise Refused(422, f"field {name!r} is missing" if value is None else f"{name}={quoted(value)}: must be text")
    return value


def _texts(where: str, value: Any) -> list[str]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise Refused(422, f"{where}={quoted(value)}: must be a list of texts")
    return list(value)


def _parsed(where: str, value: Any, *, literal: bool = False) -> Any:
    """The value itself, or what it holds as JSON text; ``literal``: or as a literal of Python, for both are in use."""
    if not isinstance(value, str):
        return value
    if (values := count_values(value.encode("utf-8", "surrogatepass"), TEXT_VALUES)) > TEXT_VALUES:
        raise Refused(413, f"{where}: has {values} JSON values; at most {TEXT_VALUES} are read of one text")
    why = ""
    for read in (json.loads, python_literal) if literal else (json.loads,):
        if read is python_literal and len(value) > PYTHON_BYTES:
            raise Refused(413, f"{where}: {len(value)} characters of Python; at most {PYTHON_BYTES} are parsed")
        try:
            return read(value)
        except (ValueError, RecursionError) as error:
            why += f"{', and ' if why else ': '}{str(error)[:200]}"
    raise Refused(422, f"{where}: is no JSON{why}")


_READERS: Final[Mapping[str, tuple[float, Callable[[str, Row, TestConfig], _Asked]]]] = {
    "CommonOJDataset": (10.0, _common_oj),
    "HumanEvalDataset": (20.0, _humaneval),
    "MBPPDataset": (20.0, _mbpp),
}
"""Seconds of a run, and what reads a row, by the kind of the data."""
DATASETS: Final = tuple(_READERS)
