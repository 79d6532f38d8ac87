"""The engine's host, without vLLM: calls side by side, and which death is told."""

import asyncio
from types import SimpleNamespace

import pytest

from overlap.core.errors import EngineError
from overlap.generate.host import EngineHost
from overlap.process.calls import CANCEL, RemoteCall, RemoteFault, decode_message, encode_message
from overlap.process.process_tree import Pid


class EngineDeadError(Exception):
    """Called as vLLM calls its own."""


class Engine:
    def __init__(self, codes=None):
        self.codes = codes or {}

    def exit_codes(self):
        return self.codes

    async def double(self, number):
        return 2 * number

    async def hang(self):
        await asyncio.Event().wait()

    async def refuse(self):
        raise EngineError("request r ended with 'oddly'")

    async def fail(self):
        raise ValueError("head size 17")

    async def die(self):
        raise EngineDeadError("see the log")


def answers(engine, *calls, deaths=()):
    """Replies by number."""
    written, enough = [], asyncio.Event()
    wanted = sum(name not in (CANCEL, "hang") for name, *_ in calls)

    def write(data):
        written.append(decode_message(data[8:]))
        if len(written) == wanted:
            enough.set()

    writer = SimpleNamespace(write=write)

    async def main():
        host = EngineHost(writer)
        host._engine = engine
        reader = asyncio.StreamReader()
        for number, (name, *args) in enumerate(calls, 1):
            reader.feed_data(encode_message(RemoteCall(number, name, tuple(args))))
        serving = asyncio.create_task(host.serve(reader))
        for process, code in deaths:
            host._note(process, code)
        async with asyncio.timeout(20):
            await enough.wait()
        reader.feed_eof()
        await serving
        await asyncio.sleep(0)
        assert host._running == {}

    asyncio.run(main())
    return {reply.number: (reply.kind, reply.value) for reply in written}


def test_calls_are_answered_side_by_side_and_one_can_be_taken_back():
    replies = answers(Engine(), ("hang",), ("double", 3), (CANCEL, 1), ("double", 4))
    assert replies == {2: ("ok", 6), 4: ("ok", 8)}


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [("refuse", EngineError, "request r ended with 'oddly'"), ("fail", RemoteFault, "ValueError: head size 17")],
)
def test_an_error_of_a_call_is_its_answer(name, kind, text):
    ((outcome, error),) = answers(Engine(), (name,)).values()
    assert (outcome, type(error), str(error)) == ("error", kind, text)


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
def test_of_several_deaths_the_one_with_a_signal_is_the_cause(codes, deaths, text):
    replies = answers(Engine(codes), ("die",), deaths=deaths)
    assert replies == {0: ("dead", text)}
