"""The process that an engine lives in, from the inside: serves the calls of the door.

vLLM changes the process that opens it: its environment, its signal handlers, its threads, and it cannot be stopped
while it starts. So it opens here, in a process of its own that can be killed at any time, and the driver stays as it
is. vLLM spawns its own processes from here; they end with this one, and this one with the driver.
"""

import asyncio
import contextlib
import os
import socket
import sys
from functools import partial
from typing import Any, NoReturn

from overlap.errors import OverlapError
from overlap.process import (
    CANCEL,
    Pid,
    RemoteCall,
    RemoteFault,
    RemoteReply,
    describe_exit,
    encode_message,
    is_tracker,
    leave,
    list_descendants,
    read_message,
    unreaped_exit_status,
)

_CAUSE_S = 0.2  # processes of an engine die one after the other: the first to have been killed is the cause


class Host:
    """Answers calls; each is a task, so that many run at once and each can be taken back."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._engine: Any = None
        self._running: dict[int, asyncio.Task[None]] = {}
        self._deaths: dict[Pid, int | None] = {}

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Until the driver hangs up."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                call: RemoteCall = await read_message(reader)
                if call.name != CANCEL:
                    task = self._running[call.number] = asyncio.create_task(self._answer(call), name=call.name)
                    task.add_done_callback(partial(self._forget, call.number))
                elif call.args[0] in self._running:
                    self._running[call.args[0]].cancel()

    async def _answer(self, call: RemoteCall) -> None:
        try:
            reply = RemoteReply(call.number, "ok", await self._do(call))
        except OverlapError as error:
            reply = RemoteReply(call.number, "error", error)
        except Exception as error:  # vLLM raises whatever it likes
            if type(error).__name__ == "EngineDeadError" and self._engine is not None:
                self._note(None, None)
                return
            reply = RemoteReply(call.number, "error", RemoteFault(f"{type(error).__name__}: {error}"))
        self._send(reply)

    def _forget(self, number: int, task: asyncio.Task[None]) -> None:
        del self._running[number]

    async def _do(self, call: RemoteCall) -> Any:
        if call.name != "open":
            return await getattr(self._engine, call.name)(*call.args)
        from overlap.generate.vllm_api import open_engine

        self._engine = open_engine(*call.args)
        self._watch()
        return self._engine.backend, self._engine.shares_gpus

    def _send(self, reply: RemoteReply) -> None:
        self._writer.write(encode_message(reply))

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        for process in list_descendants(os.getpid()):
            if is_tracker(process.pid):
                continue
            try:
                fd = os.pidfd_open(process.pid)
            except ProcessLookupError:
                self._note(process, None)
            else:
                loop.add_reader(fd, self._on_exit, process, fd)

    def _on_exit(self, process: Pid, fd: int) -> None:
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)
        self._note(process, unreaped_exit_status(process))

    def _note(self, process: Pid | None, code: int | None) -> None:
        """A process has ended, or vLLM says that one has."""
        if not self._deaths:
            asyncio.get_running_loop().call_later(_CAUSE_S, self._report)
        self._deaths[process or Pid(0, 0)] = code

    def _report(self) -> None:
        known = self._engine.exit_codes()
        deaths = [(p.pid, known.get(p.pid, code)) for p, code in self._deaths.items() if p.pid]
        if not deaths:
            self._send(RemoteReply(0, "dead", "the engine died"))
            return
        killed = [(pid, code) for pid, code in deaths if code is not None and code < 0]
        pid, code = (killed or deaths)[0]
        self._send(RemoteReply(0, "dead", f"the engine process {pid} {describe_exit(code)}"))


def serve(kind: type[Host] = Host) -> NoReturn:
    """Serve on the socket whose descriptor is the first argument, until the driver hangs up."""

    async def until_hung_up() -> None:
        reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=int(sys.argv[1])))
        await kind(writer).serve(reader)

    asyncio.run(until_hung_up())
    leave(0)  # vLLM's threads are not waited for
