"""A real engine is killed in the middle of its work, and another goes on."""

import asyncio
import os
import signal

import pytest
from engine_bench import Bench
from places import SUPPORT

from overlap.config import Config, ModelConfig, RolloutConfig
from overlap.core import Prompt, Request
from overlap.generate import EngineClient, Engines
from overlap.process import alive, identify, read_proc, run_name, shared_memory_names

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

PROMPT = tuple(range(40, 90))
CFG = Config(
    model=ModelConfig(dtype="float32", prompt_tokens=64, response_tokens=200),
    rollout=RolloutConfig(temperature=0.7, max_sequences=4),
)


def core_of(pids):
    """The engine core: the first process that vLLM itself has started."""
    return next(pid for pid in pids if b"EngineCore" in read_proc(pid, "cmdline"))


async def in_flight(steady):
    """Requests, some of which have tokens and some have not ended."""
    for group in range(60):  # all may have ended before one is looked at
        samples = [asyncio.create_task(steady.generate(Request(group, i, Prompt("p", PROMPT)))) for i in range(16)]
        while not all(task.done() for task in samples):
            tokens = await steady._slots[0].engine._peer.call("sampled")
            if any(tokens.values()) and sum(not task.done() for task in samples) > CFG.rollout.max_sequences:
                return samples
    raise AssertionError("no request was in flight")


class SteadyBench(Bench):
    def make(self, cfg, policy, scratch, host):
        self.told, self.watched = [], []
        return Engines(
            [lambda: EngineClient(cfg, policy, scratch, host=host)],
            notify=self.told.append,
            watch=self.watched.append,
        )


@pytest.mark.wide
def test_a_killed_engine_costs_no_sample_and_the_next_one_samples_from_newer_weights(tmp_path, monkeypatch):
    from overlap.policy import make_tiny_policy

    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))  # the engine's process finds its host there
    scratch = tmp_path / "s"
    scratch.mkdir()
    bench = SteadyBench(CFG, make_tiny_policy(tmp_path / "tiny"), scratch)
    steady = bench.generator

    async def work():
        samples = await in_flight(steady)
        first = [identify(pid) for pid in steady.pids()]
        os.kill(core_of(steady.pids()), signal.SIGKILL)
        await steady.wants_weights()
        assert not any(map(alive, first))
        assert core_of(steady.pids()) in bench.watched
        bench.learn()
        await steady.load(bench.update())
        return await asyncio.gather(*samples)

    try:
        bench.run(steady.load(bench.update()))
        trajectories = bench.run(work())
        later = [t for t in trajectories if t.spans[0].version == 1]
        assert len(later) == steady.resent > CFG.rollout.max_sequences  # those that waited in the engine, too
        assert max(map(bench.gap, later)) < 1e-4
        assert all(len(t.spans) == 1 and t.spans[0].end == len(t.token_ids) for t in trajectories)
        assert steady.restarts == 1
        assert [line.startswith("generation goes on") for line in bench.told] == [False, True]
        assert "was killed by signal 9" in bench.told[0]
    finally:
        bench.close()
    assert shared_memory_names(run_name(scratch)) == []
    assert [path.name for path in scratch.iterdir()] == ["engine.log"]
