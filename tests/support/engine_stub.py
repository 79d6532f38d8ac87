"""A double of the engine behind the door, for tests of the door."""

import asyncio
import select
import time

from overlap.config.fields import Config, ModelConfig
from overlap.config.rollout import RolloutConfig
from overlap.core import Prompt, Request, Spoken, VersionSpan, WeightUpdate
from overlap.generate.service import EngineSample
from overlap.process.calls import RemoteFault
from overlap.process.child_processes import ChildProcesses

CFG = Config(model=ModelConfig(prompt_tokens=8, response_tokens=8), rollout=RolloutConfig(max_sequences=4))
UPDATE = WeightUpdate(3, "shm", {"path": "", "size": 0, "tensors": []})
LOAD = ["begin", f"chunk {UPDATE.info}", "version 3"]
SAMPLE = EngineSample((5, 6), (-0.5, -0.25), "hi", "stop", (VersionSpan(3, 0, 2),))


class StubEngine:
    """An engine in memory. ``calls`` is what it was asked for; ``process`` is a real process that can die."""

    def __init__(self, life: ChildProcesses):
        self.life = life
        self.calls: list[str] = []
        self.release = asyncio.Event()
        self.release.set()
        self.broken_loads = 0
        self.open_error: Exception | None = None
        self.opened = asyncio.Event()
        self.opened.set()
        self.process = life.spawn("the engine process", ["-c", "import signal; signal.pause()"], {})

    async def call(self, name, *args):
        with self.life.guard():
            return await getattr(self, name)(*args)

    async def close(self):
        self.calls.append("close")

    async def open(self, spec):
        await self.opened.wait()
        if self.open_error:
            raise self.open_error

    async def sample(self, prompt, id, sampling):
        self.calls.append(f"sample {id}")
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.calls.append(f"abort {id}")
            raise
        return SAMPLE

    async def pause(self):
        self.calls.append("pause")

    async def resume(self):
        self.calls.append("resume")

    def _break(self):
        if self.broken_loads:
            self.broken_loads -= 1
            raise RemoteFault("RuntimeError: no such file")

    async def connect(self, init_info):
        self.calls.append(f"meet {init_info}")

    async def begin_weights(self):
        self.calls.append("begin")

    async def receive_weights(self, update_info):
        self._break()
        self.calls.append(f"chunk {update_info}")

    async def commit_weights(self, version):
        self.calls.append(f"version {version}")

    async def abandon_weights(self):
        self.calls.append("abandon")

    async def sleep(self):
        self.calls.append("sleep")

    async def wake(self, part):
        self.calls.append(f"wake {part}")

    async def parse(self, text, token_ids, tools):
        return Spoken(text)

    async def prompt_logprobs(self, token_ids, id):
        return [-1.0] * (len(token_ids) - 1)


def request(sample=0, prompt=(1, 2, 3)):
    return Request(7, sample, Prompt("p", prompt))


async def turns(n=10):
    for _ in range(n):
        await asyncio.sleep(0)


def poll(fd, seconds):
    """Whether ``fd`` can be read within ``seconds``."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


def wait_until(condition, seconds=20):
    """Look until it is true."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.01)
