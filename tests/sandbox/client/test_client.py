"""The client: a pool elsewhere, with the results and errors of a pool here, whatever servers do meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from places import ROOT, SUPPORT
from pooling import LONG, RIGHT, SLEEPER, SUM, WRONG, until
from serving import ServeCommand, Served, answering, served, serving

from sandbox import Case, Client, InvalidProblem, InvalidProgram, Judgement, Problem, Program, SandboxError
from sandbox.client import client as client_module
from sandbox.client import machine
from sandbox.errors import AccessDenied, PoolClosed

VERSION = {"workers": 1, "bounds": {"body_bytes": 1 << 20}}
Script = Sequence[tuple[int, Any] | None]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_PAUSE_S", 0.01)


@asynccontextmanager
async def scripted(script: Script, **headers: str) -> AsyncIterator[tuple[str, list[str]]]:
    """A server that gives these answers to jobs, None for a broken connection; yields its URL, and what was asked."""
    asked, left = list[str](), list(script)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := (await reader.readuntil(b"\r\n\r\n")).decode():
            await reader.readexactly(int(head.partition("Content-Length: ")[2].partition("\r\n")[0] or 0))
            path = head.split()[1]
            asked.append(path)
            reply = {"/version": (200, VERSION), "/health": (200, {})}.get(path) or (left.pop(0) if left else None)
            if reply is None:
                break
            body = json.dumps(reply[1]).encode()
            lines = [f"HTTP/1.1 {reply[0]} x", f"content-length: {len(body)}"]
            lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
            writer.write("\r\n".join((*lines, "\r\n")).encode() + body)
        writer.close()

    server = await asyncio.start_server(lambda r, w: _quiet(answer(r, w), w), "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


async def _quiet(work: Awaitable[None], writer: asyncio.StreamWriter) -> None:
    try:
        await work
    except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
        writer.close()


async def _done() -> dict[str, Any]:
    async with serving(1) as s:
        return (await s.service.pool.judge(SUM, RIGHT)).to_json()


def failed(kind: str, message: str = "x") -> dict[str, Any]:
    return {"error": {"type": kind, "message": message}}


@pytest.fixture(scope="module")
def done() -> dict[str, Any]:
    """A judgement as a server sends it."""
    return asyncio.run(_done())


@pytest.mark.promise("serve")
@served(2)
async def test_it_judges_as_a_pool_does(s: Served) -> None:
    async with Client(s.url) as client:
        given = [RIGHT, WRONG, RIGHT.source, {"source": WRONG.source}] * 10
        done = await asyncio.gather(*(client.judge(SUM, program) for program in given))
        assert [judgement.verdict for judgement in done] == ["AC", "WA"] * 20
        assert dict(client.stats().verdicts) == {"AC": 20, "WA": 20}
        assert (client.stats().done, client.stats().queued, client.stats().running) == (40, 0, 0)
        here = await s.service.pool.judge(SUM, WRONG)
        assert (done[1].cases[0].got, done[1].cases[0].message) == (here.cases[0].got, here.cases[0].message)
        raw = "import sys\nsys.stdout.buffer.write(b'\\xff\\x00\\n')"
        far, here = await client.judge(SUM, raw), await s.service.pool.judge(SUM, raw)
        assert far.cases[0].got == here.cases[0].got
        assert len((await client.judge(SUM, "print(11)", stop_at_first_failure=False)).cases) == 2
        assert client.workers == 2
    with pytest.raises(PoolClosed):
        await client.judge(SUM, RIGHT)


@served()
async def test_it_runs_a_program_as_a_pool_does(s: Served) -> None:
    source = (
        "import sys\nprint(open('a', 'rb').read(), sys.stdin.buffer.read(), sys.argv[1:])\nopen('b', 'w').write('x')"
    )
    how: dict[str, Any] = {"stdin": "\udcff", "files": {"a": b"\x00\xff"}, "arguments": ["c"], "fetch_files": ["b"]}
    async with Client(s.url) as client:
        far, here = await client.run(source, **how), await s.service.pool.run(source, **how)
    assert (far.stdout, far.files, far.exit_code) == (here.stdout, here.files, here.exit_code)
    assert far.files == (("b", b"x"),)


@pytest.mark.parametrize("how", [{"arguments": "ab"}, {"files": {"a": 1}}, {"fetch_files": "a"}, {"stdin": b""}])
def test_what_a_pool_refuses_to_run_is_not_sent(how: dict[str, Any]) -> None:
    async def main() -> None:
        async with Client("http://127.0.0.1:1") as client:
            await client.run("print(1)", **how)

    with pytest.raises(InvalidProblem, match="must be"):
        asyncio.run(main())


@served()
async def test_a_problem_is_sent_whole_once_and_again_where_the_server_has_forgotten_it(
    s: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths, ask = list[int](), machine.Machine.ask

    async def watched(self: machine.Machine, path: str, body: bytes) -> Any:
        lengths.append(len(body))
        return await ask(self, path, body)

    monkeypatch.setattr(machine.Machine, "ask", watched)
    long = Problem("long", "stdio", tuple(Case("3 4\n" + " " * 10_000, "7") for _ in range(10)))
    async with Client(s.url) as client:
        for number in range(3):
            if number == 2:
                s.service.problems.__init__()  # type: ignore[misc]
            assert (await client.judge(long, RIGHT.source + "#" * number)).verdict == "AC"
    assert [length > 100_000 for length in lengths] == [True, False, False, True]


@pytest.mark.parametrize(
    ("problem", "program", "error", "named"),
    [
        (SUM.to_json() | {"cases": []}, RIGHT, InvalidProblem, "at least one case"),
        (SUM, Program("x", "cobol"), InvalidProgram, "'cobol' is unknown"),
        (SUM, 7, TypeError, "program=7"),
    ],
)
@answering()
async def test_a_callers_mistake_is_the_error_that_it_is_here(
    s: Served, problem: Any, program: Any, error: type[Exception], named: str
) -> None:
    async with Client(s.url) as client:
        with pytest.raises(error, match=named):
            await client.judge(problem, program)


@served()
async def test_cancelling_a_job_cancels_it_there(s: Served) -> None:
    async with Client(s.url) as client:
        job = asyncio.create_task(client.judge(LONG, SLEEPER))
        await until(lambda: s.service.pool.stats().running == 1)
        job.cancel()
        await until(lambda: s.service.pool.stats().running == s.service.in_hand == 0)
        assert (await client.judge(SUM, RIGHT)).verdict == "AC"


@served()
async def test_closing_it_ends_what_waits(s: Served) -> None:
    client = Client(s.url, at_once=1)
    jobs = [asyncio.create_task(client.judge(LONG, SLEEPER)) for _ in range(2)]
    await until(lambda: s.service.pool.stats().running == 1)
    await client.close()
    for job in jobs:
        with pytest.raises(PoolClosed):
            await job
    await until(lambda: s.service.in_hand == 0)


@served(token="right")
async def test_it_sends_its_token(s: Served) -> None:
    for client in (Client(s.url, token="right"), Client(s.url.replace("//", "//any:right@"))):
        async with client:
            assert (await client.judge(SUM, RIGHT)).verdict == "AC"
    async with Client(s.url, token="wrong") as client:
        with pytest.raises(
            AccessDenied, match="the token is missing or wrong: give token=; integrations read SANDBOX_TOKEN"
        ):
            await client.judge(SUM, RIGHT)


def test_our_faults_and_full_queues_are_asked_again(done: dict[str, Any]) -> None:
    script: Script = [
        (504, failed("SandboxError")), (503, failed("Busy")), None, (504, failed("WorkerDied")),
        (429, "no JSON of ours"), (503, failed("Draining")), (502, "a proxy"), (200, done),
    ]  # fmt: skip

    async def main() -> tuple[Judgement, int]:
        async with scripted(script, retry_after="0") as (url, asked), Client(url) as client:
            return await client.judge(SUM, RIGHT), asked.count("/judge")

    judgement, asked = asyncio.run(main())
    assert (judgement.verdict, asked) == ("AC", len(script))


@pytest.mark.parametrize(
    ("script", "error", "named"),
    [
        ([(504, failed("WorkerDied", "it died"))] * 4, SandboxError, "it died"),
        ([(422, failed("InvalidProblem", "no case"))], InvalidProblem, "no case"),
        ([(501, failed("ToolchainMissing", "no rustc"))], SandboxError, "no rustc"),
        ([(404, "what")], SandboxError, "answered 404: .*is it a `sandbox serve`"),
        ([(500, failed("Exception"))], SandboxError, "x"),
        ([(502, "a proxy")] * 100, SandboxError, r"cannot be reached for 0.1 s; the last error: .* answered 502"),
        ([(503, failed("Draining"))] * 100, SandboxError, "cannot be reached"),
    ],
)
async def test_errors_that_asking_again_does_not_help_against_are_raised(
    script: Script, error: type[Exception], named: str
) -> None:
    async with scripted(script) as (url, _), Client(url, patience_s=0.1) as client:
        with pytest.raises(error, match=named):
            await client.judge(SUM, RIGHT)


async def test_a_job_under_which_servers_break_off_again_and_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_REACHED_S", 0.0)
    async with scripted([None] * 100) as (url, asked), Client(url) as client:
        with pytest.raises(SandboxError, match="4 servers broke off under this job"):
            await client.judge(SUM, RIGHT)
    assert asked.count("/judge") <= 2 * client_module.TRIES  # a kept connection is tried twice


async def test_a_server_that_nobody_reaches_is_named() -> None:
    async with scripted([]) as (url, _), Client([url, "http://127.0.0.1:1"], patience_s=0.1) as client:
        with pytest.raises(SandboxError, match=r"none of 127.0.0.1:\d+, 127.0.0.1:1 could be reached for 0.1 s"):
            await client.judge(SUM, RIGHT)


def test_a_server_that_is_silent_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is stopped, not dead: its connections stay open."""
    monkeypatch.setattr(machine, "WATCH_S", 0.05)

    async def main(server: ServeCommand) -> None:
        async with serving(1) as other:
            quiet = f"http://127.0.0.1:{server.port}"
            async with Client([quiet, other.url]) as client:
                await asyncio.gather(*(client.judge(SUM, f"print(7) #{n}") for n in range(4)))
                os.kill(server.process.pid, signal.SIGSTOP)
                try:
                    done = await asyncio.gather(*(client.judge(SUM, RIGHT.source + f"#{n}") for n in range(4)))
                finally:
                    os.kill(server.process.pid, signal.SIGCONT)
        assert {judgement.node for judgement in done} == {f"127.0.0.1:{other.port}"}

    with ServeCommand(tmp_path) as server:
        asyncio.run(main(server))


@pytest.mark.promise("serve")
def test_another_machine_takes_over_when_one_dies(tmp_path: Path) -> None:
    slow = Problem("slow", "stdio", SUM.cases, limits=LONG.limits)

    async def main(servers: Sequence[ServeCommand]) -> list[Judgement]:
        async with Client([f"http://127.0.0.1:{server.port}" for server in servers]) as client:
            programs = [f"import time\ntime.sleep(0.3)\n{RIGHT.source} #{n}" for n in range(8)]
            jobs = [asyncio.create_task(client.judge(slow, program)) for program in programs]
            await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            servers[0].process.kill()
            return await asyncio.gather(*jobs)

    with ServeCommand(tmp_path) as first, ServeCommand(tmp_path) as second:
        done = asyncio.run(main([first, second]))
    assert [judgement.verdict for judgement in done] == ["AC"] * 8
    assert f"127.0.0.1:{second.port}" in {judgement.node for judgement in done}


@answering()
async def test_a_job_that_is_too_long_for_the_server_is_told_before_it_is_sent(s: Served) -> None:
    async with Client(s.url) as client:
        with pytest.raises(SandboxError, match="greater --body-limit"):
            await client.judge(SUM, "#" * (65 << 20))


@pytest.mark.parametrize("urls", [(), "localhost:8080", "ftp://a", ["http://a", "http://"], "http://a:x"])
def test_a_wrong_url_is_refused_at_once(urls: Any) -> None:
    with pytest.raises(ValueError, match=r"url|[Pp]ort"):
        Client(urls)


def test_it_goes_on_in_a_new_loop(tmp_path: Path) -> None:
    """In a process of its own: the connections of the first loop are nobody's to close any more."""
    program = (
        "import asyncio, sys\nfrom pooling import RIGHT, SUM\nfrom sandbox import Client\n"
        "client = Client(sys.argv[1])\n"
        "print(*(asyncio.run(client.judge(SUM, RIGHT)).verdict for _ in range(2)))\n"
        "asyncio.run(client.close())"
    )
    with ServeCommand(tmp_path) as server:
        command = [sys.executable, "-c", program, f"http://127.0.0.1:{server.port}"]
        path = f"{ROOT}{os.pathsep}{SUPPORT}"
        done = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=60
        )
    assert (done.stdout, done.stderr) == ("AC AC\n", "")
