"""A process that answers calls, for tests of one on another machine: ``python -m far_child FD``."""

import asyncio
import hashlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from overlap.errors import EngineError
from overlap.process import (
    CANCEL,
    PARENT,
    RemoteCall,
    RemoteFault,
    RemoteReply,
    bind_to_parent,
    encode_message,
    read_message,
)

hanging = taken_back = served = 0


def answer(call: RemoteCall) -> Any:
    match call.name, call.args:
        case "add", (a, b):
            return a + b
        case "echo", (data,):
            return data
        case "digest", (path,):
            return hashlib.sha256(Path(path).read_bytes()).digest()
        case "served", ():
            return served
        case "pid", ():
            return os.getpid()
        case "parent", ():
            return int(os.environ[PARENT])
        case "environment", ():
            return dict(os.environ)
        case "taken_back", ():
            return taken_back == hanging
        case "die", (words,):
            os.write(1, words.encode())
            os.kill(os.getpid(), signal.SIGKILL)
    raise RemoteFault("ValueError: no")


async def main(fd: int) -> None:
    global hanging, taken_back, served
    bind_to_parent(int(os.environ[PARENT]))
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=fd))
    while True:
        call = await read_message(reader)
        served += 1
        if call.name == CANCEL:
            taken_back = call.args[0]
        elif call.name == "hang":
            hanging = call.number
        elif call.name == "give_up":
            writer.write(encode_message(RemoteReply(call.number, "dead", EngineError(call.args[0]))))
            await writer.drain()
            sys.exit(1)
        else:
            try:
                writer.write(encode_message(RemoteReply(call.number, "ok", answer(call))))
            except RemoteFault as fault:
                writer.write(encode_message(RemoteReply(call.number, "error", fault)))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
