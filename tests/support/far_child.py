"""A process that answers calls, for tests of one on another machine: ``python -m far_child FD``."""

import asyncio
import os
import signal
import subprocess
import sys

from overlap.core.errors import EngineError
from overlap.process.calls import CallServer, RemoteCall, RemoteReply, serve_until_hung_up
from overlap.process.process_tree import bind_to_parent, leave
from overlap.process.run_environment import PARENT


class FarChild(CallServer):
    """``hang`` notes that it was taken back."""

    served, back = 0, False

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        super().__init__(writer, ())

    async def do(self, call: RemoteCall) -> object:
        self.served += 1
        return await super().do(call)

    async def add(self, a: int, b: int) -> int:
        return a + b

    async def echo(self, data: bytes) -> bytes:
        return data

    async def state(self) -> dict[str, object]:
        known = {"pid": os.getpid(), "parent": int(os.environ[PARENT]), "environment": dict(os.environ)}
        return known | {"served": self.served, "taken_back": self.back}

    async def hang(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.back = True

    async def die(self, words: str) -> None:
        os.write(1, words.encode())
        os.kill(os.getpid(), signal.SIGKILL)

    async def give_up(self, words: str) -> None:
        self.send(RemoteReply(0, "dead", EngineError(words)))
        await self._writer.drain()
        leave(1)


if __name__ == "__main__":
    subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()", "of far_child"])  # as an engine has some
    bind_to_parent(int(os.environ[PARENT]))
    serve_until_hung_up(FarChild)
