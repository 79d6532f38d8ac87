"""Runs without a verdict."""

from __future__ import annotations

import asyncio
import signal

import pytest
from pooling import pooled

from sandbox import Limits, Pool, Program, ProgramRun, SandboxError
from sandbox.errors import InvalidProblem, InvalidProgram, TookDown

LIMITS = Limits(cpu_s=2, wall_s=20, output_bytes=1 << 20)


@pooled(1)
async def test_a_run_brings_back_what_the_program_printed_and_how_it_ended(pool: Pool) -> None:
    source = "import sys\nprint(input()[::-1], sys.argv[1:])\nprint('oh', file=sys.stderr)\nsys.exit(3)"
    done = await pool.run(source, stdin="abc\n", arguments=("x", "y"), limits=LIMITS)
    assert (done.stdout, done.stderr, done.exit_code, done.signal) == (b"cba ['x', 'y']\n", b"oh\n", 3, None)
    assert (done.cause, done.cut, done.compiled, done.crashed) == ("", False, None, True)
    assert done.wall_s > 0
    assert done.cpu_s > 0
    assert done.memory_bytes > 0
    assert done.message == "exit code 3: oh"
    assert ProgramRun.from_json(done.to_json()) == done
    assert (pool.stats().runs, pool.stats().done) == (1, 0)


@pooled(1)
@pytest.mark.parametrize(
    ("source", "cause", "printed"),
    [
        ("print('so far', flush=True)\nwhile True: pass", "cpu", b"so far\n"),
        ("import time\nprint('so far', flush=True)\ntime.sleep(900)", "wall", b"so far\n"),
        ("print('so far', flush=True)\nx = [bytearray(1 << 20) for _ in range(4000)]", "memory", b"so far\n"),
        ("import os\nwhile True: os.write(1, b'x' * 65536)", "output", b"x" * (1 << 20)),
        ("import os\nos.kill(os.getpid(), 11)", "", b""),
    ],
)
async def test_what_ended_a_run_is_told_and_what_was_printed_comes_back(
    pool: Pool, source: str, cause: str, printed: bytes
) -> None:
    limits = Limits(cpu_s=0.5, wall_s=2, output_bytes=1 << 20, memory_bytes=128 << 20)
    done = await pool.run(source, limits=limits)
    assert (done.cause, done.stdout, done.cut) == (cause, printed, cause == "output")
    assert (done.exit_code, done.signal) == (None, None if cause else signal.SIGSEGV)


@pooled(1)
async def test_both_streams_come_back_whole_up_to_the_limit_of_the_output_in_any_bytes(pool: Pool) -> None:
    source = "import os\nfor n in (1, 2):\n  for _ in range(15): os.write(n, bytes(range(256)) * 256)"
    done = await pool.run(source, limits=LIMITS)
    assert done.stdout == done.stderr == bytes(range(256)) * 256 * 15
    assert not done.cut


@pooled(1)
async def test_bytes_that_are_no_utf8_reach_the_program_by_stdin_and_by_files(pool: Pool) -> None:
    source = "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read() + open('in/x', 'rb').read())"
    raw = bytes(range(256))
    done = await pool.run(source, stdin=raw.decode("utf-8", "surrogateescape"), files={"in/x": raw}, limits=LIMITS)
    assert done.stdout == raw * 2


@pooled(1)
async def test_files_that_were_asked_for_come_back_and_others_do_not(pool: Pool) -> None:
    source = (
        "import os, sys\nos.makedirs('a/b')\nopen('a/b/c', 'wb').write(bytes([0, 255]))\n"
        "os.symlink('/etc/passwd', 'link')\nos.symlink('a/b', 'folder')\nos.mkfifo('pipe')\nsys.exit(1)"
    )
    names = ("a/b/c", "given", "missing", "link", "folder/c", "pipe", "a", "a/b/c")
    done = await pool.run(source, files={"given": "?"}, fetch_files=names, limits=LIMITS)
    assert dict(done.files) == {"a/b/c": b"\0\xff", "given": b"?"}


@pytest.mark.parametrize(
    ("how", "error", "says"),
    [
        ({"files": {"../x": "1"}}, InvalidProblem, "is no name below a directory"),
        ({"files": {"x": 1}}, InvalidProblem, "must be text or bytes"),
        ({"fetch_files": ("/etc/passwd",)}, InvalidProblem, "is no name below a directory"),
        ({"fetch_files": ("a/../../b",)}, InvalidProblem, "is no name below a directory"),
        ({"fetch_files": [str(n) for n in range(65)]}, InvalidProblem, "at most 64"),
        ({"fetch_files": (3,)}, InvalidProblem, "must be a list of texts"),
        ({"fetch_files": "x"}, InvalidProblem, "must be a list of texts"),
        ({"arguments": "ab"}, InvalidProblem, "must be a list of texts"),
        ({"arguments": [1]}, InvalidProblem, "must be a list of texts"),
        ({"stdin": b"x"}, InvalidProblem, "must be text"),
        ({"limits": []}, InvalidProblem, "limits="),
        ({"stdin": "\ud800"}, InvalidProblem, "is no character"),
        ({"arguments": ("a\0b",)}, InvalidProblem, "null characters"),
        ({"program": Program("1", "cobol")}, SandboxError, "cobol"),
        ({"program": {"files": [["../x", "1"]]}}, InvalidProgram, "is no name below a directory"),
    ],
)
@pooled(1)
async def test_what_cannot_be_run_is_refused_with_its_name(pool: Pool, how: dict, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        await pool.run(**{"program": "print(1)", **how})


CPP = "#include <iostream>\nint main() { int x; std::cin >> x; std::cout << 2 * x; }"


@pytest.mark.compilers
@pooled(2)
async def test_a_program_whose_inputs_come_at_once_is_compiled_once(pool: Pool, monkeypatch) -> None:
    built = []
    monkeypatch.setattr(Pool, "_judge", _counting(Pool._judge, built))
    done = await asyncio.gather(*(pool.run(Program(CPP, "cpp"), stdin=str(n)) for n in range(10)))
    assert [each.stdout for each in done] == [str(2 * n).encode() for n in range(10)]
    assert len(built) == 1
    assert [each.compile_s > 0 for each in done].count(True) == 1


@pytest.mark.compilers
@pooled(2)
async def test_a_program_that_does_not_compile_says_why_and_is_tried_once(pool: Pool, monkeypatch) -> None:
    built = []
    monkeypatch.setattr(Pool, "_judge", _counting(Pool._judge, built))
    done = await asyncio.gather(*(pool.run(Program("int main() { return x; }", "cpp")) for _ in range(4)))
    assert {(each.compiled, each.exit_code, each.message) for each in done} == {(False, None, "it does not compile")}
    assert all("was not declared" in each.compile_log for each in done)
    assert len(built) == 1


def _counting(judge, built):
    async def counted(self, job):
        built.append(job)
        return await judge(self, job)

    return counted


@pooled(1)
async def test_a_program_that_takes_down_whoever_runs_it_has_crashed_and_is_no_fault_of_ours(pool: Pool, monkeypatch):
    ask_whole = Pool._ask_whole

    async def ask(self: Pool, job, ticket):
        if job.task == "run":
            raise TookDown("the worker died")
        return await ask_whole(self, job, ticket)

    monkeypatch.setattr(Pool, "_ask_whole", ask)
    done = await pool.run("print(1)")
    assert (done.cause, done.exit_code, done.stdout) == ("crash", None, b"")
    assert done.message.startswith("took down its judge")
