"""One worker process that calls the user's reward function: the driver's end of it, and what runs there (``serve``).

Workers are started by exec: dill carries the task over by value, so a task defined in a notebook or in an unguarded
script works, and the caller's ``__main__`` is not run again.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path

from overlap.clock import now
from overlap.core import Prompt, described_error, line_of_dump
from overlap.process import process_tree
from overlap.process.calls import CANCEL, Peer, RemoteReply, encode_message, pack_call, receive_message
from overlap.process.child_processes import ChildProcesses
from overlap.process.process_tree import read_proc
from overlap.process.run_environment import PARENT
from overlap.verify.prompt_transfer import DumpedPrompt, PromptDumps
from overlap.verify.user_fault import RewardFault, checked_reward

START_S = 120.0
"""Seconds that a worker has to start and to import what the task needs."""
_READ_S = 0.05
"""A reply that came in time, while this event loop stood still, is read within this time."""
STRETCH = 3.0
"""A worker that waited for a core gets so much time more, at most this many times its deadline."""
_WHERE_S = 0.3
"""Seconds that a worker that hangs has to report where."""
_WHERE: signal.Signals = signal.SIGUSR2


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
        self._peer: Peer | None = None
        self._dumps, self._sent = dumps, set[int]()
        self._location = -1
        """Descriptor, there, of the file in which it writes where it hangs."""

    async def load(self, payload: bytes) -> str:
        """Start it and have it load the task; returns "", or what is wrong with the task. Raises WorkerLost."""
        output = {} if self.log is not None else {"stdout": None, "stderr": None}
        host = "overlap.verify.reward_host"
        self._peer = await Peer.start(self, "a reward worker", host, {}, cwd=None, **output)
        try:
            async with asyncio.timeout(START_S):
                fault, self._location = await self._peer.call("load", sys.path, payload)
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
        assert self._peer is not None
        data, forget = None, set[int]()
        if prompt.number not in self._sent:
            data, forget = prompt.data, self._sent - self._dumps.numbers
            self._sent = {*self._sent - forget, prompt.number}
        asked = asyncio.create_task(
            self._peer.ask(pack_call("reward", prompt.number, data, [*forget], answer, token_ids))
        )
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

    async def _where(self) -> str:
        """Where it hangs, as it says itself: also inside of a call that never comes back to the interpreter."""
        process, text, until = self._born[0], "", now() + _WHERE_S
        process.send_signal(_WHERE)
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
        if self._peer is not None:
            await self._peer.close()


def _starved_s(pid: int) -> float:
    """Seconds that a process has wanted a core and had none."""
    fields = read_proc(pid, "schedstat").split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0


def serve_rewards() -> None:
    """Serve calls from the socket argv[1], one after the other, until the driver is gone or wants no more.

    ``load(path, task)`` returns (fault, descriptor of the file that says where it hangs), ``reward(...)`` returns
    (number or None, fault); a fault is a text, "" for none.
    """
    process_tree.bind_to_parent(int(os.environ[PARENT]))
    with socket.socket(fileno=int(sys.argv[1])) as connection, connection.makefile("rb") as calls:
        served = _Served()
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                call = receive_message(calls)
                if call.name != CANCEL:  # whoever takes a call back ends this process
                    value = getattr(served, call.name)(*call.args)
                    sys.stdout.flush()
                    connection.sendall(encode_message(RemoteReply(call.number, "ok", value)))
    process_tree.leave(0)


class _Served:
    """The calls that a worker takes."""

    def load(self, path: list[str], payload: bytes) -> tuple[str, int]:
        sys.path[:] = path
        import dill  # type: ignore[import-untyped]

        try:
            self._task = dill.loads(payload)
        except (Exception, SystemExit) as error:  # importing a user's module can raise anything
            return described_error(error), -1
        self._prompts, self._loads = dict[int, bytes | Prompt](), dill.loads
        location = os.memfd_create("location")
        faulthandler.register(_WHERE, file=location, all_threads=False)
        return "", location

    def reward(
        self, number: int, data: bytes | None, forget: list[int], answer: str, token_ids: list[int] | None
    ) -> tuple[float | None, str]:
        if data is not None:
            self._prompts[number] = data
        for gone in forget:
            del self._prompts[gone]
        try:
            if isinstance(prompt := self._prompts[number], bytes):
                prompt = self._prompts[number] = self._loads(prompt)
            if token_ids is None:
                return checked_reward(self._task.reward(prompt, answer, None)), ""
            return checked_reward(self._task.reward_of_tokens(prompt, answer, token_ids)), ""
        except RewardFault as error:
            return None, str(error)
        except (Exception, SystemExit) as error:
            return None, described_error(error)
