"""The life of sessions: nothing before the first call, so many at once, and nothing left, however they end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from pooling import killed, living, until
from wide import wide

from sandbox.core.nouns import Limits
from sandbox.errors import Cancelled, PoolClosed, SandboxError
from sandbox.session.sessions import ProgramSession, Sessions

SLEEP = "import time\ntime.sleep(900)"
LIMITS = Limits(cpu_s=5, wall_s=1000)
Started = Callable[[], list[psutil.Process]]
LEAVES_A_CHILD = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(900)"


async def test_nothing_is_started_before_the_first_call_and_nothing_is_left_after_the_close(started: Started) -> None:
    async with Sessions(2, limits=LIMITS) as sessions:
        sessions.open()
        session = sessions.open()
        assert started() == []
        await session.execute(LEAVES_A_CHILD)
        inside = started()
        assert len(inside) >= 3
        await session.close()
        await session.close()
        assert not living(inside)
        with pytest.raises(PoolClosed, match="the session is closed"):
            await session.execute("1")
        await sessions.close()
        with pytest.raises(PoolClosed):
            sessions.open()


CALLS: dict[str, Callable[[ProgramSession], Awaitable[object]]] = {
    "a state": lambda session: session.execute(SLEEP),
    "a workspace": lambda session: session.workspace().exec("sleep 900"),
    "files": lambda session: session.run_files({"main.py": SLEEP}),
}
ENDS = [
    ("a state", "session"),
    ("a state", "sessions"),
    ("a workspace", "session"),
    ("files", "session"),
    ("files", ""),
]


@pytest.mark.parametrize(("call", "closed"), ENDS)
async def test_a_close_or_a_cancel_ends_the_call_that_is_under_way(started: Started, call: str, closed: str) -> None:
    async with Sessions(1, limits=LIMITS) as sessions:
        session = sessions.open()
        work = asyncio.ensure_future(CALLS[call](session))
        await until(lambda: bool(started()))
        if closed:
            await {"session": session, "sessions": sessions}[closed].close()
        else:
            work.cancel()
        with pytest.raises((asyncio.CancelledError, Cancelled, PoolClosed)):
            await work
        assert not living(started())


async def test_a_call_that_is_cancelled_ends_its_state_and_gives_the_place_back() -> None:
    async with Sessions(1, limits=LIMITS) as sessions:
        first, second = sessions.open(), sessions.open()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await first.execute(f"x = 1\n{SLEEP}")
        assert (await second.execute("2")).value == "2"
        await second.close()
        again = await first.execute("'x' in globals()")
        assert (again.value, again.fresh) == ("False", True)


async def test_a_state_beyond_the_count_waits_for_one_to_end() -> None:
    async with Sessions(1, limits=LIMITS) as sessions:
        first, second, third = (sessions.open() for _ in range(3))
        await first.execute("1")
        waiting = asyncio.create_task(second.execute("2"))
        leaving = asyncio.create_task(third.execute("3"))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert not waiting.done()
        assert (await first.execute("4")).fresh is False
        await first.close()
        assert (await waiting).value == "2"


async def test_calls_beyond_those_at_once_wait_and_states_stay() -> None:
    async with Sessions(2, at_once=1, limits=LIMITS) as sessions:
        both = sessions.open(), sessions.open()
        for session in both:
            await session.execute("import time")
        code = "start = time.monotonic()\ntime.sleep(0.2)\nstart"
        one, two = await asyncio.gather(*(session.execute(code) for session in both))
        assert abs(float(str(one.value)) - float(str(two.value))) >= 0.2
        assert (one.fresh, two.fresh) == (False, False)


async def test_the_calls_of_one_session_are_answered_in_their_order() -> None:
    async with Sessions(2, limits=LIMITS) as sessions:
        session = sessions.open()
        await session.execute("x = []")
        outputs = await asyncio.gather(*(session.execute(f"x.append({number})\nx") for number in range(4)))
        assert outputs[-1].value == "[0, 1, 2, 3]"


async def test_a_state_that_rests_too_long_is_ended(started: Started) -> None:
    async with Sessions(1, idle_s=0.3, limits=LIMITS) as sessions:
        session = sessions.open()
        await session.execute("x = 1")
        inside = started()
        await until(lambda: not any(process.is_running() for process in inside))
        again = await session.execute("'x' in globals()")
        assert (again.value, again.fresh) == ("False", True)


@pytest.mark.parametrize("last", ["os._exit(0)", "os.write(channel, b'forged')"])
async def test_a_state_that_ends_or_speaks_between_two_calls_is_no_part_of_the_next(
    started: Started, last: str
) -> None:
    code = f"""
import os, socket, stat, sys, threading, time
channel = next(fd for fd in range(3, 64) if stat.S_ISSOCK(os.fstat(fd).st_mode))
asked = threading.get_ident()
def waits():
    frame = sys._current_frames()[asked]
    return frame.f_code.co_name == 'main' and 'word' not in frame.f_locals
def act():
    while not waits():
        time.sleep(0.01)
    {last}
    if os.fork() == 0:
        time.sleep(900)
threading.Thread(target=act).start()
"""
    async with Sessions(1, limits=LIMITS) as sessions:
        session = sessions.open()
        await session.execute("1")
        count = len(started())
        first = await session.execute(code)
        await until(lambda: len(started()) != count)  # it has ended, or there is a child more
        again = await session.execute("1")
        assert (first.ended, again.value, again.ended, again.fresh) == (None, "1", None, True)


async def test_a_jail_that_dies_is_our_fault_and_the_next_call_has_another(started: Started) -> None:
    async with Sessions(1, isolation="B", limits=LIMITS) as sessions:
        session = sessions.open()
        await session.execute("x = 1")
        call = asyncio.create_task(session.execute(SLEEP))
        await asyncio.sleep(0)
        for process in started():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        with pytest.raises(SandboxError):
            await call
        again = await session.execute("'x' in globals()")
        assert (again.value, again.fresh) == ("False", True)


OWNER = """
import asyncio
from sandbox.core.nouns import Limits
from sandbox.session.sessions import Sessions
async def main():
    session = Sessions(1, isolation={tier!r}, limits=Limits(cpu_s=5, wall_s=1000)).open()
    await session.execute({first!r})
    print(0, flush=True)
    await session.execute("time.sleep(900)")
asyncio.run(main())
"""


@pytest.mark.parametrize("tier", ["A", wide("B")])
def test_nothing_is_left_when_the_owner_is_killed(tier: str, tmp_path: Path) -> None:
    killed(OWNER.format(tier=tier, first=LEAVES_A_CHILD), tmp_path, 1, 3)


WRONG: list[tuple[Callable[[ProgramSession], Awaitable[object]], str]] = [
    (lambda session: session.execute("1", timeout_s=0), "timeout_s=0: must be a positive"),
    (lambda session: session.execute("x" * (5 << 20)), "code: 5242880 characters"),
    (lambda session: session.workspace().exec("true", timeout_s=0), "timeout_s=0: must be a positive number"),
    (lambda session: session.workspace().exec("x" * 70000), "command: 70000 characters"),
    (lambda session: session.run_files({}), "files: there are none"),
    (lambda session: session.run_files({"../out.py": "1"}), "is no name below a directory"),
    (lambda session: session.run_files({"a": "1", "a/b": "2"}), "as a file and as a folder"),
    (lambda session: session.run_files({"main.cob": "."}, language="cobol"), "language='cobol' is unknown; use one of"),
]


@pytest.mark.parametrize(("ask", "words"), WRONG, ids=[words for _, words in WRONG])
async def test_a_call_that_cannot_be_asked_is_the_callers_error_and_no_fault_of_ours(ask: Any, words: str) -> None:
    async with Sessions(1, limits=LIMITS) as sessions:
        with pytest.raises(ValueError, match=words) as caught:
            await ask(sessions.open())
        assert type(caught.value) is ValueError
