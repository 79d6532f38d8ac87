"""A process that answers calls: for the test of ``Peer``."""

import asyncio
import os
import signal
import socket
import sys

from overlap.process.calls import CANCEL, RemoteCall, RemoteFault, RemoteReply, encode_message, read_message

hanging = taken_back = 0


def answer(call: RemoteCall) -> RemoteReply:
    if call.name == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if call.name == "add":
        return RemoteReply(call.number, "ok", call.args[0] + call.args[1])
    if call.name == "taken_back":
        return RemoteReply(call.number, "ok", taken_back == hanging)
    return RemoteReply(call.number, "error", RemoteFault("ValueError: no"))


async def main(fd: int) -> None:
    global hanging, taken_back
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=fd))
    while True:
        call = await read_message(reader)
        if call.name == CANCEL:
            taken_back = call.args[0]
        elif call.name == "hang":
            hanging = call.number
        else:
            writer.write(encode_message(answer(call)))


asyncio.run(main(int(sys.argv[1])))
