"""A process that answers calls: for the test of ``Peer``."""

import asyncio
import os
import signal
import socket
import sys

from overlap.process import CANCEL, Call, RemoteFault, Reply, encode, read

hanging = taken_back = 0


def answer(call: Call) -> Reply:
    if call.name == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if call.name == "add":
        return Reply(call.number, "ok", call.args[0] + call.args[1])
    if call.name == "taken_back":
        return Reply(call.number, "ok", taken_back == hanging)
    return Reply(call.number, "error", RemoteFault("ValueError: no"))


async def main(fd: int) -> None:
    global hanging, taken_back
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=fd))
    while True:
        call = await read(reader)
        if call.name == CANCEL:
            taken_back = call.args[0]
        elif call.name == "hang":
            hanging = call.number
        else:
            writer.write(encode(answer(call)))


asyncio.run(main(int(sys.argv[1])))
