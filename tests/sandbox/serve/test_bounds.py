"""What clients may take of a server: places, bytes, seconds; and what of that is left when they have gone."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import socket
from contextlib import suppress
from typing import Any

import pytest
from pooling import LONG, RIGHT, SLEEPER, SUM, until
from pydantic import BaseModel, ValidationError
from serving import Served, answered, answering, served

from sandbox import Judgement
from sandbox.serve import listening
from sandbox.serve.bounds import Bounds
from sandbox.serve.own import BatchRequest, RunRequest
from sandbox.serve.sandbox_fusion.models import RunCodeRequest, RunJupyterRequest

JOB = {"problem": SUM.to_json(), "program": RIGHT.source}
ENDLESS = {"problem": LONG.to_json(), "program": SLEEPER.source}


def request(body: object, path: str = "/judge") -> bytes:
    data = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%s" % (path.encode(), len(data), data)


def left(s: Served) -> float | None:
    """Clients that left before their answer."""
    return s.service.metrics.registry.get_sample_value("sandbox_clients_left_total")


@pytest.mark.promise("serve-bounds")
@pytest.mark.parametrize("path", ["/judge", "/judge/batch"])
@served(2)
async def test_a_client_that_hangs_up_cancels_its_jobs(s: Served, path: str) -> None:
    _, writer = await s.connect()
    body = ENDLESS if path == "/judge" else {"jobs": [ENDLESS, ENDLESS | {"program": SLEEPER.source + "#"}]}
    writer.write(request(body, path))
    await until(lambda: s.service.pool.stats().running == len(body.get("jobs", [0])))
    writer.close()
    await until(lambda: s.service.pool.stats().running == s.service.in_hand == 0)
    assert left(s) == 1
    assert (await s.ask("/judge", JOB)).json["verdict"] == "AC"


@served(bounds=Bounds(queue=1))
async def test_a_full_server_says_when_to_ask_again(s: Served) -> None:
    _, writer = await s.connect()
    writer.write(request(ENDLESS))
    await until(lambda: s.service.in_hand == 1)
    got = await s.ask("/judge", JOB)
    assert (got.status, got.headers["retry-after"]) == (503, "1")
    assert got.json["error"]["type"] == "Busy"
    assert (await s.ask("/health")).status == 200
    writer.close()
    await until(lambda: s.service.in_hand == 0)
    assert (await s.ask("/judge", JOB)).status == 200


@pytest.mark.promise("serve-bounds")
@served(bounds=Bounds(body_bytes=4000, held_bytes=5000))
async def test_long_bodies_are_refused_and_forgotten(s: Served) -> None:
    for length in (4001, 7000, 10**9, 10**30):  # the last two are not sent: the head is enough
        body = b" " * min(length, 7000)
        head = b"POST /judge HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % length
        got = answered(await s.send(head + body))
        assert got.status in (413, 400), length
    chunk = b"1000\r\n" + b" " * 4096 + b"\r\n"
    head = b"POST /judge HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    assert answered(await s.send(head + chunk + b"0\r\n\r\n")).status == 413
    assert s.service.held_bytes == 0
    assert (await s.ask("/judge", JOB)).status == 200


@answering(bounds=Bounds(body_bytes=4000, held_bytes=5000))
async def test_bodies_that_are_too_long_together_wait_for_their_turn(s: Served) -> None:
    _, writer = await s.connect()
    writer.write(b"POST /judge HTTP/1.1\r\nhost: a\r\ncontent-length: 4000\r\n\r\n" + b" " * 3999)
    await until(lambda: s.service.held_bytes == 3999)
    got = await s.ask("/judge", b" " * 3000)
    assert (got.status, got.json["error"]["type"]) == (503, "Busy")
    writer.close()
    await until(lambda: s.service.in_hand == 0)


@answering(bounds=Bounds(body_s=0.2))
async def test_a_body_has_a_deadline(s: Served) -> None:
    reader, writer = await s.connect()
    writer.write(b"POST /judge HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{")
    got = answered(await reader.read())
    assert (got.status, "within 0.2 s" in got.error) == (408, True)
    assert got.headers["connection"] == "close"
    writer.close()


@pytest.mark.parametrize("sent", [b"", b"POST /judge HT", b"GET /health HTTP/1.1\r\nhost: a\r\n\r\nGET /hea"])
@answering()
async def test_a_head_has_a_deadline(s: Served, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(listening, "HEAD_S", 0.1)
    reader, writer = await s.connect()
    writer.write(sent)
    with suppress(ConnectionResetError):
        await reader.read()  # until it is closed
    writer.close()


@pytest.mark.parametrize("head", [b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000, b"GET /" + b"a" * 100_000])
@answering()
async def test_a_head_has_a_length(s: Served, head: bytes) -> None:
    assert b" 4" in (await s.send(head))[:12]


TWO_LENGTHS = [
    (b"content-length: 5\r\ntransfer-encoding: chunked", "both Content-Length and Transfer-Encoding"),
    (b"transfer-encoding: chunked\r\ncontent-length: 5", "both Content-Length and Transfer-Encoding"),
    (b"content-length: 5\r\ntransfer-encoding:\r\n chunked", "both Content-Length and Transfer-Encoding"),
    (b"content-length: 5\r\ncontent-length: 6", "conflicting Content-Length"),
    (b"content-length: 5, 6", "conflicting Content-Length"),
    (b"content-length: 5\r\n 0", "bad Content-Length"),
    (b"content-length: -5", "bad Content-Length"),
    (b"content-length: +5", "bad Content-Length"),
    (b"transfer-encoding: chunked\r\ntransfer-encoding: chunked", "multiple Transfer-Encoding"),
    (b"transfer-encoding: gzip, chunked", "Only Transfer-Encoding: chunked"),
]


@pytest.mark.parametrize("method", [b"GET", b"POST"])
@answering()
async def test_a_body_whose_end_is_in_doubt_is_refused_and_nothing_behind_it_is_read(s: Served, method: bytes) -> None:
    for lines, says in TWO_LENGTHS:
        hidden = b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"
        got = await s.send(method + b" /health HTTP/1.1\r\nhost: a\r\n" + lines + b"\r\n\r\n0\r\n\r\n" + hidden)
        assert (got.count(b"HTTP/1.1"), got[:12]) == (1, b"HTTP/1.1 400"), lines
        assert answered(got).headers["connection"] == "close", lines
        assert says in answered(got).body.decode(), lines


@served(bounds=Bounds(send_s=0.2))
async def test_a_client_that_reads_nothing_loses_its_answer(s: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "CLOSING_S", 0.1)
    quiet = socket.socket()
    quiet.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    quiet.connect(("127.0.0.1", s.port))
    program = "import sys\nsys.stdout.write('x' * (15 << 20))"
    quiet.sendall(request({"program": program}, "/run"))
    await until(lambda: left(s) == 1)
    assert s.service.in_hand == 0
    await until(lambda: not s.server.server_state.connections)
    quiet.close()


@served(1, judge_once=True)
async def test_other_clients_jobs_come_between_those_of_a_batch(s: Served) -> None:
    _, writer = await s.connect()
    jobs = [{"program": f"import time\ntime.sleep(0.1)  # {number}"} for number in range(30)]
    writer.write(request({"problem": SUM.to_json(), "jobs": jobs}, "/judge/batch"))
    await until(lambda: s.service.pool.stats().running == 1)
    assert (await s.ask("/judge", JOB)).json["verdict"] == "AC"
    assert sum(s.service.pool.stats().verdicts.values()) < 31  # some of the batch are not judged yet
    writer.close()


@served(2, bounds=Bounds(send_s=0.2))
async def test_a_client_that_reads_no_lines_of_a_batch_cancels_its_other_jobs(
    s: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = s.service.pool.judge

    async def talk(*asked: Any, **how: Any) -> Judgement:
        return dataclasses.replace(await judge(*asked, **how), compile_log="x" * (15 << 20))

    monkeypatch.setattr(s.service.pool, "judge", talk)
    monkeypatch.setattr(listening, "CLOSING_S", 0.1)
    _, writer = await s.connect()
    writer.transport.pause_reading()
    writer.write(request({"jobs": [ENDLESS, JOB]}, "/judge/batch"))
    await until(lambda: left(s) == 1)
    assert s.service.in_hand == s.service.pool.stats().running == 0
    await until(lambda: not s.server.server_state.connections)
    writer.close()


@pytest.mark.promise("serve-bounds")
@served(token="sésame".encode().hex())
async def test_a_token_is_asked_for(s: Served) -> None:
    token = s.service.token
    for given, status in (
        ({}, 401),
        ({"authorization": "Bearer x"}, 401),
        ({"authorization": "Bearer \xe9"}, 401),
        ({"authorization": f"Token {token}"}, 401),
        ({"authorization": "Basic %%%"}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"authorization": "Basic " + base64.b64encode(b"user:").decode()}, 401),
        ({"authorization": f"bearer {token}"}, 200),
        ({"authorization": "Basic " + base64.b64encode(f"user:{token}".encode()).decode()}, 200),
    ):
        got = await s.ask("/judge", JOB, **given)
        assert got.status == status, given
    assert (await s.ask("/metrics")).status == 401
    assert (await s.ask("/health")).status == 200
    posted = await s.ask("/health", {})  # whose body nobody may have read without the token
    assert posted.status == 401


@pytest.mark.parametrize(
    ("host", "origin", "token", "status"),
    [
        ("127.0.0.1:8080", "", "", 200),
        ("[::1]:8080", "", "", 200),
        ("localhost:8080", "http://localhost:8080", "", 200),
        ("sandbox", "", "", 200),
        ("sandbox.rl.svc.cluster.local:8080", "", "", 200),
        ("sandbox.rl.svc", "", "", 200),
        ("host.docker.internal:8080", "", "", 200),
        ("rebound.example", "", "", 403),
        ("local.example", "", "", 403),
        ("notlocal", "http://page.example", "", 403),
        ("rebound.example:8080", "http://rebound.example:8080", "", 403),
        ("10.1.2.3.example", "", "", 403),
        ("[::1", "", "", 403),
        ("127.0.0.1:8080", "http://page.example", "", 403),
        ("127.0.0.1:8080", "http://127.0.0.1:9090", "", 403),
        ("127.0.0.1:8080", "null", "", 403),
        ("judge.example", "", "known", 200),
        ("judge.example", "https://page.example", "known", 403),
    ],
)
@served()
async def test_a_page_of_another_site_is_refused(s: Served, host: str, origin: str, token: str, status: int) -> None:
    s.service.token = token
    body = json.dumps(JOB).encode()
    head = f"POST /judge HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
    head += f"origin: {origin}\r\n" * bool(origin) + f"authorization: Bearer {token}\r\n\r\n"
    assert answered(await s.send(head.encode() + body)).status == status


def submitted(kind: str, completion: str = "f = 1", **data: object) -> dict[str, object]:
    return {"config": {"dataset_type": kind, "language": "python", "provided_data": data}, "completion": completion}


ONE_TEST = {"input": {"stdin": ""}, "output": {"stdout": "1"}}
LIST = "[" + ",".join("1" * 300_000) + "]"
WIDE = "[" + ",".join("1" * 2_100_000) + "]"
CALLED = {"id": "x", "kind": "function", "fn_name": "f"}
MANY = {"cases": [{"input": f"assert f(1) == {LIST}"}], "id": "x", "kind": "assert", "fn_name": "f"}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/judge", {"problem": MANY, "program": "f = 1"}, 422),
        ("/judge", {"problem": CALLED | {"cases": [{"input": "[1]", "expected": WIDE}]}, "program": "f = 1"}, 422),
        ("/judge", {"problem": CALLED | {"cases": [{"input": "[1]", "expected": "9" * 200_000}]}, "program": ""}, 422),
        ("/judge", {"problem": CALLED | {"cases": [{"input": "1\n" * 300_000, "expected": "1"}]}, "program": ""}, 422),
        ("/submit", submitted("MBPPDataset", test_list=f"['assert f(1)', {LIST}]"), 413),
        ("/submit", submitted("CommonOJDataset", test=LIST), 413),
        ("/submit", submitted("CommonOJDataset", "```\n" * 120_000, test=[ONE_TEST]), 413),
    ],
)
@served()
async def test_what_takes_long_to_parse_inside_of_a_text_is_refused(
    s: Served, path: str, body: dict[str, object], status: int
) -> None:
    got = await s.ask(path, body)
    assert got.status == status
    assert "at most" in got.error or "more than" in got.error


@pytest.mark.parametrize(
    ("request_", "body"),
    [
        (RunRequest, {"program": "", "x": 1, "y": 1}),
        (BatchRequest, {"jobs": [1, 1]}),
        (BatchRequest, {"jobs": [{"x": 1, "y": 1}, {"x": 1}]}),
        (RunCodeRequest, {"code": "", "language": "c", "fetch_files": [1, 1]}),
        (RunJupyterRequest, {"cells": [1, 1]}),
    ],
)
def test_the_check_of_a_body_ends_at_the_first_fault(request_: type[BaseModel], body: dict[str, object]) -> None:
    """A list of half a million would hold every other client up."""
    with pytest.raises(ValidationError) as found:
        request_.model_validate(body)
    assert found.value.error_count() == 1


@pytest.mark.parametrize("apart", [False, True], ids=["whole", "head first"])
@answering(Bounds(queue=1, body_bytes=4000))
async def test_a_refused_client_may_ask_again_on_its_connection(s: Served, apart: bool) -> None:
    """Its body was not read when it was refused."""
    with s.service.admitted():
        reader, writer = await s.connect()
        for _ in range(2):
            head, _, body = request({"problem": "x" * 3000}).partition(b"\r\n\r\n")
            writer.write(head + b"\r\n\r\n")
            if not apart:
                writer.write(body)
            got = await reader.readuntil(b"\r\n\r\n")
            assert got.startswith(b"HTTP/1.1 503")
            await reader.readexactly(int(got.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
            if apart:
                writer.write(body)
        writer.close()


@served()
async def test_a_server_that_drains_finishes_what_it_has_and_refuses_the_rest(s: Served) -> None:
    async with asyncio.TaskGroup() as tasks:
        slow = {"problem": SUM.to_json(), "program": "import time\ntime.sleep(0.3)\n" + RIGHT.source}
        running = tasks.create_task(s.ask("/judge", slow))
        await until(lambda: s.service.in_hand == 1)
        drained = tasks.create_task(s.service.drained(30))
        await until(lambda: s.service.draining)
        refused, health = await s.ask("/judge", JOB), await s.ask("/health")
    assert (refused.status, refused.json["error"]["type"]) == (503, "Draining")
    assert (health.status, health.json["status"]) == (503, "draining")
    assert running.result().json["verdict"] == "AC"
    assert drained.result()
