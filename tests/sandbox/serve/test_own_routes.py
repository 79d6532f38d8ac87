"""What our own routes answer: judgements as the pool gives them, and errors that say who is at fault."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pooling import RIGHT, SUM, WRONG
from serving import Served, answering, served

from sandbox import CheckerError, Problem, SandboxError, ToolchainMissing
from sandbox.serve.service import KeptProblems

PROBLEM = SUM.to_json()
DEEP = b'{"problem":' + b"[" * 100_000 + b"}"


@pytest.mark.promise("serve")
@served()
async def test_a_program_is_judged_as_the_pool_judges_it(s: Served) -> None:
    for program in (RIGHT, WRONG):
        got = await s.ask("/judge", {"problem": PROBLEM, "program": program.source})
        here = await s.service.pool.judge(SUM, program)
        assert got.status == 200, got.body
        assert got.json["verdict"] == here.verdict
        assert got.json.keys() == here.to_json().keys()


@served(2)
async def test_a_batch_has_one_line_per_job_and_each_says_which(s: Served) -> None:
    jobs = [{"program": program.source} for program in [RIGHT, WRONG] * 10]
    got = await s.ask("/judge/batch", {"problem": PROBLEM, "jobs": jobs})
    assert got.headers["content-type"] == "application/x-ndjson"
    found = {line["index"]: line["judgement"]["verdict"] for line in got.lines}
    assert [found[n] for n in range(20)] == ["AC", "WA"] * 10


@served(2)
async def test_a_batch_hands_results_out_before_the_last_is_there(s: Served) -> None:
    limits = PROBLEM["limits"] | {"wall_s": 100}
    slow = {"program": "import time\ntime.sleep(900)", "problem": PROBLEM | {"limits": limits}}
    body = json.dumps({"problem": PROBLEM, "jobs": [slow, {"program": RIGHT.source}]}).encode()
    reader, writer = await s.connect()
    writer.write(b"POST /judge/batch HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
    await reader.readuntil(b"\r\n\r\n")
    line = json.loads(await reader.readexactly(int(await reader.readline(), 16)))
    assert (line["index"], line["judgement"]["verdict"]) == (1, "AC")
    assert s.service.pool.stats().running == 1
    writer.close()


@served()
async def test_our_fault_in_a_batch_is_one_lines(s: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = s.service.pool.judge

    async def fail_once(problem: Problem, program: Any, **how: Any) -> Any:
        if program.source == "fail":
            raise SandboxError("a worker died")
        return await judge(problem, program, **how)

    monkeypatch.setattr(s.service.pool, "judge", fail_once)
    got = await s.ask("/judge/batch", {"problem": PROBLEM, "jobs": [{"program": "fail"}, {"program": RIGHT.source}]})
    first, second = sorted(got.lines, key=lambda line: int(line["index"]))
    assert first == {"index": 0, "error": {"type": "SandboxError", "message": "a worker died"}}
    assert second["judgement"]["verdict"] == "AC"


@pytest.mark.parametrize(
    ("path", "body", "status", "named"),
    [
        ("/judge", b"", 422, "the body: is missing"),
        ("/judge", b"{", 400, "no JSON"),
        ("/judge", DEEP, 400, "parsing the body"),
        ("/judge", b'{"a":[' + b"0," * 1_000_001 + b"0]}", 413, "JSON values"),
        ("/judge", {}, 422, "problem: is missing"),
        ("/judge", {"problem": PROBLEM}, 422, "program: is missing"),
        (
            "/judge",
            {"problem": PROBLEM, "program": "", "tests": 1},
            422,
            "unknown field 'tests'; known fields: problem",
        ),
        ("/judge", {"problem": 1, "program": ""}, 422, "problem=1: must be"),
        ("/judge", {"problem": PROBLEM | {"cases": []}, "program": ""}, 422, "give at least one case"),
        ("/judge", {"problem": PROBLEM | {"language": "cobol"}, "program": ""}, 422, "language='cobol' is unknown"),
        ("/judge", {"problem": PROBLEM, "program": {"source": "", "language": "bash"}}, 422, "language='bash' is"),
        ("/judge", {"problem": PROBLEM, "program": {"files": [["a", ""], ["a", ""]]}}, 422, "'a' is there twice"),
        ("/judge", {"problem": PROBLEM, "program": "", "turn": "x"}, 422, "turn='x': must be a valid integer"),
        ("/judge", {"problem": PROBLEM, "program": "", "stop_at_first_failure": 1}, 422, "must be a valid boolean"),
        ("/judge", {"problem": "x", "program": ""}, 409, "problem='x': is not kept"),
        ("/judge/batch", {"problem": PROBLEM}, 422, "jobs: is missing"),
        ("/judge/batch", {"jobs": [{}] * 10_001}, 422, "at most 10000"),
        ("/judge/batch", {"problem": PROBLEM, "jobs": [{"program": ""}, {"a": 1}]}, 422, "jobs[1]: unknown field 'a'"),
        ("/judge/batch", {"problem": PROBLEM, "jobs": [{"program": ""}, {}]}, 422, "jobs[1]: program: is missing"),
        ("/judge/batch", {"problem": "x", "jobs": [{"program": ""}]}, 409, "jobs[0]: problem='x': is not kept"),
        ("/run", {}, 422, "program: is missing"),
        ("/run", {"program": "", "files": {"a": "%"}}, 422, "must be text in base64"),
        ("/run", {"program": "", "files": {"../a": ""}}, 422, "'../a' is no name below a directory"),
        ("/run", {"program": "", "limits": {"cpu": 1}}, 422, "limits: unknown key 'cpu'"),
        ("/run", {"program": "", "limits": {"cpu_s": -1}}, 422, "limits.cpu_s=-1"),
        ("/run", {"program": "", "arguments": {"a": "b"}}, 422, "arguments={'a': 'b'}: must be a list of texts"),
        ("/nothing", {}, 404, "there is no /nothing here"),
        ("/judge", None, 405, "use POST"),
    ],
)
@answering()
async def test_what_cannot_be_answered_names_field_and_way_out(
    s: Served, path: str, body: Any, status: int, named: str
) -> None:
    got = await s.ask(path, body)
    assert (got.status, named in got.error) == (status, True), got.body


@pytest.mark.promise("our-faults")
@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (SandboxError("x"), 504, "SandboxError"),
        (ToolchainMissing("x"), 501, "ToolchainMissing"),
        (CheckerError("x"), 422, "CheckerError"),
        (RuntimeError("x"), 504, "SandboxError"),
        (MemoryError(), 504, "SandboxError"),
    ],
)
@answering()
async def test_our_faults_are_never_a_verdict(
    s: Served, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, kind: str
) -> None:
    async def fail(*given: Any, **how: Any) -> None:
        raise error

    monkeypatch.setattr(s.service.pool, "judge", fail)
    got = await s.ask("/judge", {"problem": PROBLEM, "program": ""})
    assert (got.status, got.json["error"]["type"]) == (status, kind)


@served()
async def test_an_equal_problem_is_checked_once(s: Served) -> None:
    for _ in range(3):
        assert (await s.ask("/judge", {"problem": PROBLEM, "program": RIGHT.source})).status == 200
    assert s.service.problem(json.loads(json.dumps(PROBLEM))) is s.service.problem(PROBLEM)
    assert s.service.problem(PROBLEM | {"id": "other"}) is not s.service.problem(PROBLEM)


@served()
async def test_a_problem_may_be_named_by_what_an_answer_said_of_it(s: Served) -> None:
    job = {"problem": PROBLEM, "program": RIGHT.source}
    name = (await s.ask("/judge", job)).headers["problem-kept"]
    assert (await s.ask("/judge", job | {"problem": name})).json["verdict"] == "AC"
    batch = await s.ask("/judge/batch", {"problem": name, "jobs": [{"program": RIGHT.source}]})
    assert batch.lines[0]["judgement"]["verdict"] == "AC"
    got = await s.ask("/judge", job | {"problem": name[:-1] + "x"})
    assert (got.status, "send it whole" in got.error) == (409, True)


def test_kept_problems_are_bounded() -> None:
    kept = KeptProblems(bytes_max=100_000)
    many = [PROBLEM | {"id": str(n), "cases": PROBLEM["cases"] * 20} for n in range(20)]
    first = [kept.find(problem) for problem in many]
    assert kept.bytes <= 100_000
    assert kept.find(many[-1]) is first[-1]
    assert kept.find(many[0]) is not first[0]


@served()
async def test_the_server_tells_what_it_is_and_has_done(s: Served) -> None:
    await asyncio.gather(*(s.ask("/judge", {"problem": PROBLEM, "program": f"print(7) # {n}"}) for n in range(3)))
    assert (await s.ask("/health")).json == {"status": "ok", "in_hand": 0}
    version = (await s.ask("/version")).json
    assert version["languages"]["python"].startswith("cpython")
    text = (await s.ask("/metrics")).body.decode()
    assert 'sandbox_requests_total{route="/judge",status="200"} 3.0\n' in text
    assert 'sandbox_judgements_total{verdict="WA"} 3.0\n' in text
    assert 'sandbox_request_seconds_bucket{le="+Inf"} 5.0\n' in text


@answering()
async def test_the_openapi_document_has_every_route_with_its_schemas(s: Served) -> None:
    document = (await s.ask("/openapi.json")).json
    assert {"/judge", "/judge/batch", "/run", "/run_code", "/run_jupyter", "/submit"} <= document["paths"].keys()
    schemas = document["components"]["schemas"]
    assert schemas["Problem"]["required"] == ["id", "kind", "cases"]
    assert schemas["JudgeRequest"]["required"] == ["problem", "program"]
    assert document["components"]["securitySchemes"] == {"HTTPBearer": {"type": "http", "scheme": "bearer"}}
    assert document["paths"]["/judge"]["post"]["responses"].keys() >= {"200", "422", "503", "504"}
