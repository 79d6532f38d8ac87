"""The process that an engine lives in: ``python -m overlap.generate.host FD`` serves the driver's calls from socket FD.

The engine changes the process that opens it (environment, signal handlers, threads), and cannot be stopped while it
starts. So it opens in a process that can be killed at any time. The processes that the engine spawns end with this one,
and this one ends with the driver: ``multiprocessing`` runs this module once more, first of all, in each of them, and
importing it binds that process to its parent.
"""

import asyncio
import os
from typing import Any

from overlap.core.errors import OverlapError
from overlap.generate.bind_to_parent import enter_engine_process
from overlap.generate.service import EngineSpec
from overlap.process.calls import CallServer, RemoteCall, RemoteReply, serve_until_hung_up
from overlap.process.child_processes import describe_exit
from overlap.process.process_tree import Pid, is_tracker, list_descendants, open_pidfd, unreaped_exit_status

enter_engine_process()

_CAUSE_S = 0.2  # processes of an engine die one after the other: the first to have been killed is the cause


class EngineHost(CallServer):
    """Answers the calls of ``EngineClient``: ``open`` itself, the others by the engine."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        super().__init__(writer, (OverlapError,))
        self._engine: Any = None
        self._deaths: dict[Pid, int | None] = {}

    async def do(self, call: RemoteCall) -> Any:
        return await getattr(self if call.name == "open" else self._engine, call.name)(*call.args)

    def failed(self, error: Exception) -> Exception | None:
        if type(error).__name__ == "EngineDeadError" and self._engine is not None:
            self._note(None, None)
            return None
        return super().failed(error)

    async def open(self, spec: EngineSpec) -> None:
        """Start the engine."""
        from overlap.generate.start import open_engine

        self._engine = open_engine(spec)
        self._watch()
        await self._engine.prepare()

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        for process in list_descendants(os.getpid()):
            if is_tracker(process.pid):
                continue
            fd = open_pidfd(process)
            if fd is None:
                self._note(process, None)
            else:
                loop.add_reader(fd, self._on_exit, process, fd)

    def _on_exit(self, process: Pid, fd: int) -> None:
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)
        self._note(process, unreaped_exit_status(process))

    def _note(self, process: Pid | None, code: int | None) -> None:
        """A process has ended, or the engine says that one has."""
        if not self._deaths:
            asyncio.get_running_loop().call_later(_CAUSE_S, self._report)
        self._deaths[process or Pid(0, 0)] = code

    def _report(self) -> None:
        known = self._engine.exit_codes()
        deaths = [(p.pid, known.get(p.pid, code)) for p, code in self._deaths.items() if p.pid]
        text = "the engine died"
        if deaths:
            killed = [(pid, code) for pid, code in deaths if code is not None and code < 0]
            pid, code = (killed or deaths)[0]
            text = f"the engine process {pid} {describe_exit(code)}"
        self.send(RemoteReply(0, "dead", text))


if __name__ == "__main__":
    serve_until_hung_up(EngineHost)
