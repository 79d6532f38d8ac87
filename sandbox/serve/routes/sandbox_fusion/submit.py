"""SandboxFusion's `/submit`: an answer judged against a problem that comes with the call.

    CommonOJDataset     {test: [{input: {stdin}, output: {stdout}}, ...]}
    HumanEvalDataset    {prompt, test, entry_point}, in Python; {prompt, tests, language} of MultiPL-E, in C++
    MBPPDataset         {test | test_list: [asserts], labels: {test_setup_code}}

Outputs are compared by our modes (`extra.compare`, by default tokens), not in lower case as SandboxFusion does
(`extra.compare` "sf"). Asserts decide by their values where that can be, not by an exit code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sandbox.core.nouns import CaseResult, Judgement, Program, Verdict
from sandbox.core.plain import python_literal
from sandbox.rewards.extract import fence_tags, fenced_blocks
from sandbox.serve.bodies import Json, Refused, check_python
from sandbox.serve.bounds import MEMORY_BYTES, RUN_S_MAX
from sandbox.serve.routes.sandbox_fusion import run_code
from sandbox.serve.routes.shared import fields, runs
from sandbox.serve.routes.shared.labels import check_answers
from sandbox.serve.service import Service

DATASETS: Final = ("CommonOJDataset", "HumanEvalDataset", "MBPPDataset")
_RUN_S: Final = {"CommonOJDataset": 10.0, "HumanEvalDataset": 20.0, "MBPPDataset": 20.0}
_NEXT_TOP_LEVEL: Final = re.compile(r"\n(?=[^\s#@)\]}])")
"""Where a completion of a function's body goes on with something else."""


@dataclass(frozen=True, slots=True)
class _Asked:
    problem: Json
    program: Program
    code: str
    """As it was taken out of the answer."""
    kind: str
    tests: list[Any]
    """`test_info` of each."""


async def submit(service: Service, body: Mapping[str, Any]) -> Json:
    """The response of `/submit`. Raises Refused, InvalidProblem, SandboxError."""
    config = fields.mapping(body, "config")
    dataset = fields.text(config, "dataset_type", None) if config.get("dataset_type") else fields.text(body, "dataset")
    if config.get("custom_extract_logic"):
        raise Refused(422, "config.custom_extract_logic: no code of a caller runs in this server; leave it out")
    if dataset not in DATASETS:
        raise Refused(422, f"config.dataset_type={dataset!r}: must be one of {', '.join(DATASETS)}")
    extra = fields.mapping(config, "extra", {})
    run_s = fields.above_zero(config, "run_timeout", _RUN_S[dataset], most=RUN_S_MAX)
    row = row_of(config, body.get("id"))
    asked = _READERS[dataset](fields.text(body, "completion"), row, config, extra)
    problem = service.problem({**asked.problem, "limits": {"cpu_s": run_s, "memory_bytes": MEMORY_BYTES}})
    done = await service.pool.judge(problem, asked.program, stop_at_first_failure=not extra.get("run_all_cases", False))
    return {
        "id": body.get("id"),
        "accepted": done.verdict is Verdict.AC,
        "extracted_code": asked.code,
        "full_code": None,
        "test_code": None,
        "tests": _tests(done, asked.tests),
        "extracted_type": asked.kind,
        "extra": {"verdict": done.verdict.value, "passed": done.passed, "total": done.total, "weak": done.weak},
    }


def row_of(config: Mapping[str, Any], id: Any) -> Json:
    """The problem's row: the only one, or that of this id. Raises Refused."""
    given = config.get("provided_data")
    if isinstance(given, list):
        rows = [row for row in given if isinstance(row, dict) and str(row.get("id", row.get("task_id"))) == str(id)]
        if len(rows) != 1:
            raise Refused(422, f"config.provided_data: {len(rows)} rows have the id {id!r}; it must be one")
        return rows[0]
    if not isinstance(given, dict):
        raise Refused(
            422, "config.provided_data is missing: this server has no data sets; send the problem with the call"
        )
    return given


def _tests(done: Judgement, infos: list[Any]) -> list[Json]:
    if done.verdict is Verdict.CE:
        return [{"passed": False, "exec_info": _not_compiled(done), "test_info": infos[0]}]
    return [
        {"passed": case.verdict is Verdict.AC, "exec_info": _exec_info(done, case), "test_info": infos[case.index]}
        for case in done.cases
    ]


def _info(status: str, message: str, compiled: Json | None, ran: Json | None) -> Json:
    ends: Json = {"executor_pod_name": None, "files": {}}
    return {"status": status, "message": message, "compile_result": compiled, "run_result": ran, **ends}


def _not_compiled(done: Judgement) -> Json:
    failed = run_code.not_compiled(done.compile_cause, done.run_s, done.compile_log)
    interpreted = runs.is_interpreted(done.language)
    return _info("Failed", "it does not compile", *((None, failed) if interpreted else (failed, None)))


def _exec_info(done: Judgement, case: CaseResult) -> Json:
    """What is known of the run: a case that passed printed what was expected, and is not shown."""
    compiled = None if runs.is_interpreted(done.language) else run_code.result("Finished", 0.0, 0, "", done.compile_log)
    out, err = (None if said is None else str(said) for said in (case.got, case.stderr))
    timed_out = case.verdict is Verdict.TLE
    code = None if timed_out else 0
    if case.verdict in (Verdict.RE, Verdict.MLE, Verdict.OLE, Verdict.SEC):
        code = runs.return_code(case.exit_code or None, case.signal, "output" if case.verdict is Verdict.OLE else "")
    ran = run_code.result("TimeLimitExceeded" if timed_out else "Finished", case.wall_s, code, out, err)
    return _info("Success" if code == 0 else "Failed", case.message, compiled, ran)


def extracted(completion: str, language: str) -> tuple[str, str]:
    """The program in an answer by SandboxFusion's rule, and how it was found: the first closed block of the language,
    or else the first closed one; else one that never closes. An answer in Python without fences is the program itself.
    """
    check_answers("completion", (completion,))
    blocks, tags = list(fenced_blocks(completion)), fence_tags(language)
    for closed, kind in ((True, "fenced"), (False, "incomplete_fenced")):
        if found := [block for block in blocks if block.closed == closed]:
            return next((block for block in found if block.tag in tags), found[0]).code, kind
    if language == "python" and completion.strip():
        return completion, "heuristic"
    return "", "empty"


def _common_oj(completion: str, row: Json, config: Mapping[str, Any], extra: Json) -> _Asked:
    language = run_code.fusion_language(fields.text(config, "language"))
    tests = fields.parsed("provided_data.test", row.get("test"))
    if not isinstance(tests, list):
        raise fields.refusal("provided_data.test", tests, "a list of {input, output}")
    cases = [_oj_case(f"provided_data.test[{n}]", test) for n, test in enumerate(tests)]
    code, kind = extracted(completion, language)
    compare = fields.text(extra, "compare", "tokens")
    problem = {"id": "submitted", "kind": "stdio", "cases": cases, "compare": compare}
    whole = bool(extra.get("return_full_case"))
    infos = [test if whole else _shortened(test) for test in tests]
    return _Asked(problem, Program(code, language), code, kind, infos)


def _oj_case(where: str, test: Any) -> Json:
    if not isinstance(test, dict):
        raise fields.refusal(where, test, "an object with input and output")
    given, wanted = (fields.mapping(test, name) for name in ("input", "output"))
    if others := sorted({*given, *wanted} - {"stdin", "stdout"}):
        raise Refused(422, f"{where}: {others[0]!r}: programs read stdin and write stdout here, no other files")
    return {"input": fields.text(given, "stdin", ""), "expected": fields.text(wanted, "stdout")}


def _shortened(test: Json) -> Json:
    return {part: {name: _beginning(text) for name, text in test[part].items()} for part in ("input", "output")}


def _beginning(text: str | None) -> str | None:
    return text if text is None or len(text) <= 1000 else f"{text[:1000]}..."


def _humaneval(completion: str, row: Json, config: Mapping[str, Any], extra: Json) -> _Asked:
    freeform = bool(extra.get("is_freeform"))
    prompt = fields.text(row, "prompt", None) if row.get("prompt") is not None else fields.text(row, "content")
    language = run_code.fusion_language(str(row.get("language") or "python"))
    if language not in ("python", "cpp"):
        raise Refused(422, f"provided_data.language={language!r}: HumanEvalDataset is judged in python and cpp here")
    if language == "cpp":
        tests, top = fields.text(row, "tests"), ""
    else:
        labels = fields.parsed("provided_data.labels", row.get("labels") or {})
        entry = fields.text({**(labels if isinstance(labels, dict) else {}), **row}, "entry_point")
        test = fields.text(row, "test")
        if "unittest" in test and "check" not in test:
            raise Refused(422, "provided_data.test: is a unittest class; this route calls check(entry_point)")
        tests = f"{test}\ncheck({entry})\n"
        start = re.search(rf"^(?:async )?def {re.escape(entry)}\b", prompt, re.MULTILINE)
        top = prompt[: start.start()] if start else ""
    code, kind = extracted(completion, language) if freeform else (_body(completion, row, language), "heuristic")
    source = code if freeform else f"{prompt}\n{code}"
    problem = {"id": "submitted", "kind": "assert", "cases": [{"input": tests}], "language": language, "preamble": top}
    return _Asked(problem, Program(source, language), code, kind, [None])


def _body(completion: str, row: Json, language: str) -> str:
    """A completion up to where the function's body ends."""
    if language == "python":
        end = _NEXT_TOP_LEVEL.search(completion)
        return completion[: end.start()] if end else completion
    for stop in fields.texts(row, "stop_tokens", ()):
        if stop.strip() and not stop.startswith("re:"):
            completion = completion.partition(stop)[0]
    return completion


def _mbpp(completion: str, row: Json, config: Mapping[str, Any], extra: Json) -> _Asked:
    tests = row.get("test") if row.get("test") is not None else row.get("test_list")
    asserts = fields.texts({"test": _literal("provided_data.test", tests)}, "test")
    labels = _literal("provided_data.labels", row.get("labels") or {})
    setup = fields.text(labels if isinstance(labels, dict) else {}, "test_setup_code", "")
    code, kind = extracted(completion, "python")
    text = "\n".join(filter(None, (setup, *asserts)))
    problem = {"id": "submitted", "kind": "assert", "cases": [{"input": text}]}
    return _Asked(problem, Program(code, "python"), code, kind, [None])


def _literal(where: str, value: Any) -> Any:
    """The value, or what it holds as JSON or as a literal of Python: both are in use."""
    try:
        return fields.parsed(where, value)
    except Refused:
        check_python(where, value)
        try:
            return python_literal(value)
        except ValueError as error:
            raise Refused(422, f"{where}: is no JSON, and {str(error)[:200]}") from None


_READERS: Final = {"CommonOJDataset": _common_oj, "HumanEvalDataset": _humaneval, "MBPPDataset": _mbpp}
