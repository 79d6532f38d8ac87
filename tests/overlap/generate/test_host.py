"""The engine's host, without vLLM: of the deaths of an engine's processes, which one is told."""

import asyncio
from types import SimpleNamespace

import pytest

from overlap.generate.host import EngineHost
from overlap.process.calls import RemoteCall, RemoteReply, decode_message
from overlap.process.process_tree import Pid


class EngineDeadError(Exception):
    """Called as vLLM calls its own."""


class Engine:
    def __init__(self, codes):
        self.codes = codes

    def exit_codes(self):
        return self.codes

    async def die(self):
        raise EngineDeadError("see the log")


@pytest.mark.parametrize(
    ("codes", "deaths", "text"),
    [
        ({5: -9}, [(Pid(7, 1), None), (Pid(5, 1), None)], "the engine process 5 was killed by signal 9 (SIGKILL)"),
        ({5: 1}, [(Pid(7, 1), -9), (Pid(5, 1), None)], "the engine process 7 was killed by signal 9 (SIGKILL)"),
        ({5: 1}, [(Pid(5, 1), None)], "the engine process 5 exited with code 1"),
        ({}, [(Pid(7, 1), None)], "the engine process 7 died"),
        ({}, [], "the engine died"),
    ],
)
async def test_of_several_deaths_the_one_with_a_signal_is_the_cause(codes, deaths, text):
    written = asyncio.Queue()
    host = EngineHost(SimpleNamespace(write=lambda data: written.put_nowait(decode_message(data[8:]))))
    host._engine = Engine(codes)
    for process, code in deaths:
        host._note(process, code)
    await host._answer(RemoteCall(1, "die"))
    async with asyncio.timeout(20):
        assert await written.get() == RemoteReply(0, "dead", text)
    assert written.empty()
