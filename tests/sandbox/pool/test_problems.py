"""A problem crosses each border once, stays while a job needs it, and leaves nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from places import ROOT
from pooling import RIGHT, SUM, WRONG, family, pool_of, pooled, within
from starting import refuse
from wide import wide

from sandbox import Case, Pool, Problem, Program, SandboxError, Subtask, Verdict
from sandbox.errors import IsolationUnavailable, ProblemLost
from sandbox.pool import messages, problem_memfd, store, worker
from sandbox.pool.link import Link
from sandbox.pool.messages import SharedFlags
from sandbox.pool.store import ReceivedProblems, Store

Both = tuple[Store, ReceivedProblems]
A, B, C = (Problem(name, "stdio", (Case("1", name * 100),)) for name in "abc")


@asynccontextmanager
async def stored(**bounds: int) -> AsyncIterator[tuple[Store, ReceivedProblems]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        kept = Store(ours, asyncio.get_running_loop(), **bounds)
        try:
            yield kept, ReceivedProblems(theirs)
        finally:
            kept.close()


async def given(kept: Store, problem: Problem) -> str:
    async with kept.hold(problem) as written:
        return written.digest


async def settled(kept: Store) -> None:
    """What the thread was told before is done."""
    await asyncio.get_running_loop().run_in_executor(kept._thread, int)


def memory_of(pid: int) -> int:
    """Problems that a process holds."""
    found = 0
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found += os.readlink(fd).startswith("/memfd:problem")
        except OSError:
            continue
    return found


# --- once -------------------------------------------------------------------------------------------------------------


@within(stored)
async def test_a_problem_is_written_once_for_all_who_ask_for_it(both: Both) -> None:
    kept, received = both
    alike = dataclasses.replace(A, cases=[Case(case.input, case.expected) for case in A.cases])  # type: ignore[arg-type]
    digests = await asyncio.gather(*(given(kept, problem) for problem in (A, A, alike, B, A)))
    assert len(set(digests)) == kept.written == 2
    held = received.find(digests[0])
    assert held is not None
    assert problem_memfd.read_problem(held) == A


@pytest.mark.parametrize(
    ("other", "common"),
    [
        ({"arguments": ("b",)}, {}),
        ({"files": (("f", "b"),)}, {}),
        ({"compare": "exact"}, {}),
        ({"referee_arguments": ("b",)}, {"compare": "checker", "checker": Program("x")}),
        ({"group": "b"}, {"subtasks": (Subtask("b", 1.0),)}),
    ],
)
@within(stored)
async def test_problems_that_differ_in_anything_of_a_case_are_not_taken_for_one(
    both: Both, other: dict[str, Any], common: dict[str, Any]
) -> None:
    kept, received = both
    cases = Case("1", "a" * 100), Case("1", "a" * 100, **other)
    last = Case("1", "x", group=other.get("group"))
    one, two = (Problem("p", "stdio", (case, last), **common) for case in cases)
    digests = [await given(kept, problem) for problem in (one, two)]
    assert digests[0] != digests[1]
    held = received.find(digests[1])
    assert held is not None
    assert problem_memfd.read_problem(held) == two


@pytest.mark.promise("pool")
@pooled(2)
async def test_a_pool_sends_a_problem_once_however_many_programs_there_are(pool: Pool) -> None:
    sources = [f"{RIGHT.source}  # {number}" for number in range(12)]
    done = await asyncio.gather(*(pool.judge(SUM, Program(source)) for source in sources))
    assert {one.verdict for one in done} == {Verdict.AC}
    assert pool._link is not None
    assert pool._link.store.written == 1
    assert memory_of(os.getpid()) == 0
    assert [memory_of(pid) for pid in pool.pids()] == [1]
    assert sum(memory_of(process.pid) for process in family(pool.pids()[0])) == 0


def test_a_worker_reads_a_problem_once_while_it_has_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ends = socket.socketpair()
    with ends[0], ends[1]:
        one = worker.PoolWorker(*ends, SharedFlags(), "A", str(tmp_path), {})
        held, written = problem_memfd.write(A)
        other, there = problem_memfd.write(B)
        assert one._problem(written.digest, held) is one._problem(written.digest, held)
        monkeypatch.setattr(worker, "PROBLEM_BYTES_MAX", written.size)
        kept = one._problem(there.digest, other)
        assert list(one.problems) == [there.digest]
        assert one.problem_bytes == there.size
        assert one._problem(there.digest, other) is kept


@pytest.mark.promise("pool")
@pooled(1)
async def test_an_answer_is_small_however_large_the_problem(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    handle = Link._handle

    def weigh(self: Link, message: messages.Head) -> None:
        sizes.append(len(str(message)))
        handle(self, message)

    monkeypatch.setattr(Link, "_handle", weigh)
    large = Problem("large", "stdio", tuple(Case("x" * (1 << 20), "y" * (1 << 20)) for _ in range(4)))
    assert (await pool.judge(large, Program("print(input())"))).verdict is Verdict.WA
    assert 0 < max(sizes) < 4096


# --- room -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [{"kept_max": 1}, {"kept_bytes_max": 600}])
def test_what_was_used_longest_ago_makes_room_and_is_written_again(bounds: dict[str, int]) -> None:
    async def main() -> None:
        async with stored(**bounds) as (kept, received):
            a, b = [await given(kept, problem) for problem in (A, B)]
            await settled(kept)
            assert received.find(a) is None
            assert received.find(b) is not None
            assert await given(kept, A) == a
            assert kept.written == 3
            assert received.find(a) is not None

    asyncio.run(main())


@within(lambda: stored(kept_max=1))
async def test_what_a_job_in_hand_needs_stays(both: Both) -> None:
    kept, received = both
    async with kept.hold(A) as held:
        for problem in (B, C, B):
            await given(kept, problem)
        await settled(kept)
        assert received.find(held.digest) is not None
        assert await given(kept, A) == held.digest
        assert kept.written == 4
    assert len(kept._entries) == 1


@pooled(1)
async def test_a_cancelled_job_takes_nobody_elses_problem_along(pool: Pool) -> None:
    await pool.judge(SUM, RIGHT)
    assert pool._link is not None
    pool._link.store.kept_max = 1
    for number in range(8):
        problem = dataclasses.replace(SUM, id=f"p{number}")
        cancelled, other = (asyncio.create_task(pool.judge(problem, RIGHT)) for _ in range(2))
        await asyncio.sleep(0)
        cancelled.cancel()
        assert (await other).verdict is Verdict.AC
        with pytest.raises(asyncio.CancelledError):
            await cancelled


# --- ends and faults --------------------------------------------------------------------------------------------------


@within(stored)
async def test_no_memory_for_a_problem_is_our_fault_and_passes(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, _ = both
    with monkeypatch.context() as patch:
        patch.setattr(store, "write", refuse(errno.ENOMEM, store.write))
        found = await asyncio.gather(given(kept, A), given(kept, A), return_exceptions=True)
        assert [type(error) for error in found] == [SandboxError, SandboxError]
    assert await given(kept, A)


@pooled(1)
async def test_a_problem_that_does_not_arrive_is_our_fault_and_is_sent_anew(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = dataclasses.replace(SUM, id="lost")
    await pool.judge(SUM, RIGHT)
    assert pool._link is not None
    with monkeypatch.context() as patch:
        patch.setattr(pool._link.store, "_send", lambda message, fds: None)
        with pytest.raises(ProblemLost, match="did not arrive"):
            await pool.judge(lost, RIGHT)
    for problem in (lost, SUM):
        assert (await pool.judge(problem, RIGHT)).verdict is Verdict.AC


@within(stored)
async def test_of_equal_problems_one_that_did_not_arrive_is_sent_anew_however_many_hold_it(both: Both) -> None:
    kept, received = both

    async def lost(problem: Problem) -> None:
        async with kept.hold(problem):
            await asyncio.sleep(0)
            raise ProblemLost("a problem did not arrive")

    again = dataclasses.replace(A, cases=(Case("1", "".join("a" for _ in range(100))),))
    async with kept.hold(again) as written:
        received.look()
        received._held.clear()  # as when the supervisor had no descriptor left for it
        gone = await asyncio.gather(*(lost(A) for _ in range(3)), return_exceptions=True)
        assert [type(error) for error in gone] == [ProblemLost] * 3
        assert received.find(written.digest) is None
        assert await given(kept, A) == written.digest
        assert received.find(written.digest) is not None
        assert kept.written == 3
    assert kept.kept_bytes == 2 * written.size


MANY = """
import asyncio, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (270, 270))
from sandbox import Case, Pool, Problem, Program
async def main():
    problems = [Problem(f"p{k}", "stdio", (Case("", "7"),)) for k in range(290)]
    async with Pool(1) as pool:
        done = await asyncio.gather(*(pool.judge(problem, Program("print(7)")) for problem in problems))
    print({one.verdict.value for one in done})
asyncio.run(main())
"""


def test_more_problems_at_once_than_the_supervisor_may_have_descriptors_are_all_judged(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", MANY], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.stdout, done.stderr) == ("{'AC'}\n", "")


# --- hidden -----------------------------------------------------------------------------------------------------------

SEARCH = """
import os
seen = []
def look(name):
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.read(fd, 1 << 20)
    except OSError:
        return b""
    finally:
        os.close(fd)
me = os.getpid()
above = [me]
while above[-1] > 1 and (stat := look(f"/proc/{above[-1]}/stat")):
    above.append(int(stat.rpartition(b")")[2].split()[1]))
for pid in [*above, *(n for n in range(max(1, me - 500), me + 50) if os.path.exists(f"/proc/{n}")), os.getppid()]:
    for fd in range(3, 64):
        seen.append(look(f"/proc/{pid}/fd/{fd}"))
    seen += [look(f"/proc/{pid}/{name}") for name in ("environ", "cmdline", "maps")]
for top in (os.getcwd(), "/box", "/run/user"):
    for folder, _, names in os.walk(top):
        seen += [look(os.path.join(folder, name)) for name in names]
print("here" if any(b"se" + b"cret-" in text for text in seen) else "nowhere", len(seen) > 128)
"""


@pytest.mark.promise("expected-outputs")
@pytest.mark.parametrize(("tier", "where"), [("A", "nowhere"), wide("B", "nowhere"), ("C", "here")])
def test_no_program_finds_what_it_or_another_is_judged_by(tier: str, where: str) -> None:
    """Tier C isolates nothing, and shows that the search can find."""

    async def main() -> None:
        async with pool_of(2, isolation=tier) as pool:
            await pool.judge(Problem("kept", "stdio", (Case("", "secret-1"),)), WRONG)  # the supervisor has it
            cases = tuple(Case("", f"{where} True") for _ in range(2))
            hidden = Problem("asked", "stdio", cases)
            done = await pool.judge(hidden, Program(SEARCH))
            assert done.verdict is Verdict.AC, done.cases

    try:
        asyncio.run(main())
    except IsolationUnavailable as error:
        pytest.skip(str(error))
