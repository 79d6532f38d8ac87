"""One worker process that calls the user's reward function, seen from the driver.

It is started by exec like all processes of a run, and talks over a connection of ``multiprocess``. ``dill`` carries the
task over by value: one that is defined in a notebook or an unguarded script, a lambda and a closure work, and the
caller's ``__main__`` is not run again.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import tempfile
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from multiprocess.connection import Connection, Pipe

from overlap.clock import now
from overlap.core import line_of_dump
from overlap.process.child_processes import ChildProcesses
from overlap.process.process_tree import read_proc
from overlap.verify.prompt_transfer import DumpedPrompt, PromptDumps
from overlap.verify.reward_host import BOOT, WHERE

START_S = 120.0
"""Seconds that a worker has to start and to import what the task needs."""
_READ_S = 0.05
"""A reply that came in time, while this event loop stood still, is read within this time."""
STRETCH = 3.0
"""A worker that waited for a core gets so much time more, at most this many times its deadline."""
_WHERE_S = 0.3
"""Seconds that a worker that hangs has to report where."""


class WorkerLost(Exception):
    """There is no reward: its worker did not start, hung or died. The sample is masked."""


class NotReturned(WorkerLost):
    """The user's function did not come back from an answer. ``what`` it did, without a subject."""

    def __init__(self, text: str, what: str = "") -> None:
        super().__init__(text)
        self.what = what


class Hung(NotReturned):
    """The user's function has not ended at its deadline."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the reward function {what}", what)


class RewardWorker(ChildProcesses):
    """One process, which has one call at a time. It works where this process does, and prints to ``log`` or else to
    this process's own output; ``scratch`` is the run's directory, or else the temp folder. ``dumps`` makes its prompts.
    """

    def __init__(self, dumps: PromptDumps, log: Path | None, scratch: Path | None) -> None:
        super().__init__("reward", WorkerLost, scratch or Path(tempfile.gettempdir()), log)
        self._connection: Connection | None = None
        self._thread = ThreadPoolExecutor(1, "reward worker")
        """Waits for the replies."""
        self._dumps, self._sent = dumps, set[int]()
        self._location = -1
        """Descriptor, there, of the file in which it writes where it hangs."""

    async def load(self, payload: bytes) -> str:
        """Start it and have it load the task; returns "", or what is wrong with the task. Raises WorkerLost."""
        output = {} if self.log is not None else {"stdout": None, "stderr": None}
        with self.starting("a reward worker"):
            self._connection, theirs = Pipe()
        with theirs:
            fd = theirs.fileno()
            self.spawn("a reward worker", ["-P", "-c", BOOT, str(fd)], {}, cwd=None, pass_fds=[fd], **output)
        try:
            async with asyncio.timeout(START_S):
                fault, self._location = await self._ask("load", sys.path, payload)
        except TimeoutError:
            late = f"the reward worker did not start, and load the task, within {START_S:g} s"
            raise WorkerLost(late) from None
        return str(fault)

    async def call(
        self, prompt: DumpedPrompt, answer: str, token_ids: list[int] | None, deadline_s: float
    ) -> tuple[float | None, str]:
        """The reward of an answer, and the fault of the reward function, "" for none. ``token_ids``: those of the
        answer, for a task that asks for them. Raises WorkerLost; NotReturned where the function may be to blame.
        """
        data, forget = None, set[int]()
        if prompt.number not in self._sent:
            data, forget = prompt.data, self._sent - self._dumps.numbers
            self._sent = {*self._sent - forget, prompt.number}
        tokens = None if token_ids is None else array("q", token_ids)  # of a list, dill writes each by itself
        asked = asyncio.create_task(self._ask("reward", prompt.number, data, [*forget], answer, tokens))
        try:
            before_s = _starved_s(self._born[0].pid)
            await asyncio.wait([asked], timeout=deadline_s)
            starved_s = max(map(_starved_s, self.pids()), default=0.0) - before_s if not asked.done() else 0.0
            for seconds in (min(max(0.0, starved_s), STRETCH * deadline_s), _READ_S):
                await asyncio.wait([asked], timeout=seconds)
            if not asked.done():
                raise Hung(f"took more than {deadline_s:g} s of wall time{await self._where()}")
            reward, fault = asked.result()
            return reward, fault
        finally:
            asked.cancel()

    async def _ask(self, *call: Any) -> Any:
        """The reply of the process. Raises the cause where it ends before."""
        with self.guard():
            assert self._connection is not None
            try:
                return await asyncio.get_running_loop().run_in_executor(self._thread, _reply, self._connection, call)
            except (EOFError, OSError):  # it ends, or the function has closed the connection
                await self.wait_dead()
                raise

    async def _where(self) -> str:
        """Where it hangs, as it says itself: also inside of a call that never comes back to the interpreter."""
        process, text, until = self._born[0], "", now() + _WHERE_S
        process.send_signal(WHERE)
        while now() < until and not text.endswith((" in <module>\n", "  ...\n")):
            await asyncio.sleep(0.01)
            text = read_proc(process.pid, f"fd/{self._location}").decode(errors="replace")
        where = line_of_dump(text)
        return f" in {where}" if where else ""

    def died(self, who: str, code: int | None) -> None:
        """End it with a text without pid or log: failures of samples are counted by their text."""
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        text = f"the reward worker died ({how})"
        killed = code is None or code == -signal.SIGKILL  # by the machine, perhaps, as memory ran out
        self.fail(text if killed else NotReturned(text, f"ended its process ({how})"))

    async def close(self) -> None:
        """End it with its descendants, and free what belongs to it."""
        await super().close()
        connection, self._connection = self._connection, None
        if connection is not None:
            ours = socket.socket(fileno=connection.fileno())
            ours.shutdown(socket.SHUT_RDWR)  # who escaped may hold the other end: the thread must not wait for that
            ours.detach()
            await asyncio.to_thread(self._thread.shutdown)
            connection.close()


def _reply(connection: Connection, call: tuple[Any, ...]) -> Any:
    connection.send(call)
    return connection.recv()


def _starved_s(pid: int) -> float:
    """Seconds that a process has wanted a core and had none."""
    fields = read_proc(pid, "schedstat").split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0
