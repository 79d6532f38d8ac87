"""Problems, programs and a watched pool for the tests of the pool."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
from async_tests import Test, supplied
from places import ROOT

from sandbox import Case, Limits, Pool, Problem, Program

SUM = Problem("sum", "stdio", (Case("3 4\n", "7"), Case("5 6\n", "11")), limits=Limits(cpu_s=5, wall_s=30))
RIGHT = Program("print(sum(map(int, input().split())))")
WRONG = Program("print(7)")
SLEEPER = Program("import time\ntime.sleep(900)\nprint(7)")
LONG = Problem("long", "stdio", (Case("", "7"),), limits=Limits(cpu_s=5, wall_s=1000))
DEADLINE_S = 60.0


def family(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still live after a while; a zombie is dead, and its parent's to reap."""
    end = time.monotonic() + 20
    while True:
        alive = [process for process in processes if lives(process)]
        if not alive or time.monotonic() > end:
            return alive
        time.sleep(0.005)


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def run_directories() -> set[str]:
    """Ours, and our cgroups."""
    import tempfile

    from sandbox.kernel import cgroup

    prefix = f"ovl-{os.getpid():x}-"
    return {name for name in {*os.listdir(tempfile.gettempdir()), *cgroup.other_names()} if name.startswith(prefix)}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - the condition is another process's state
            await asyncio.sleep(0.01)


@asynccontextmanager
async def pool_of(workers: int, **options: object) -> AsyncIterator[Pool]:
    """A pool that must leave neither a process nor a file; it runs every program that it is given."""
    files = run_directories()
    async with asyncio.timeout(DEADLINE_S * 2):
        async with Pool(workers, **{"judge_once": False, "oversubscribe": True, **options}) as pool:  # type: ignore[arg-type]
            (supervisor,) = pool.pids()
            yield pool
            everyone = [psutil.Process(supervisor), *family(supervisor)] if psutil.pid_exists(supervisor) else []
    assert not living(everyone)
    assert run_directories() == files


def within(opened: Callable[[], AbstractAsyncContextManager[Any]]) -> Callable[[Test], Callable[..., None]]:
    """Run a test in a loop of its own, with what is opened there as its first argument."""

    def decorate(test: Test) -> Callable[..., None]:
        async def main(work: Test) -> None:
            async with opened() as given:
                await work(given)

        return supplied(test, lambda work: asyncio.run(main(work)))

    return decorate


def pooled(workers: int, **options: object) -> Callable[[Test], Callable[..., None]]:
    """Run a test in a loop of its own, with such a pool as its first argument."""
    return within(lambda: pool_of(workers, **options))


def members(pool: Pool, module: str) -> list[psutil.Process]:
    """The pool's processes that run one module; in `zygote` the waiter outside a jail and pid 1 inside it."""
    found = []
    for process in family(pool.pids()[0]):
        try:
            if any(f".{module} import main" in part for part in process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children() if lives(process) else []
    except psutil.NoSuchProcess:
        return []


def parts(pool: Pool, name: str) -> list[psutil.Process]:
    """supervisor > worker > waiter > keeper (pid 1 of the jail) > program."""
    level = [psutil.Process(pid) for pid in pool.pids()]
    for below in ("worker", "waiter", "keeper", "program"):
        level = [child for process in level for child in _children(process)]
        if below == name:
            return level
    raise ValueError(name)


def killed(source: str, tmp_path: Path, answers: int, processes: int, by: int = signal.SIGKILL) -> None:
    """Start a caller, kill it after so many lines and with so many processes below it; nothing may be left."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", source]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as caller:
        assert caller.stdout is not None
        for number in range(answers):
            assert caller.stdout.readline() == b"%d\n" % number
        below: list[psutil.Process] = []

        def grown() -> bool:
            below[:] = family(caller.pid)
            return len(below) >= processes

        asyncio.run(until(grown))
        caller.send_signal(by)
        caller.wait(30)
    assert not living(below)
    asyncio.run(until(lambda: not any(tmp_path.iterdir())))
