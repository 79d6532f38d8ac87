"""1,000 episodes of a hostile harness on the real engine, and engines that are killed meanwhile: each token is trained
once. ``test_engine`` has 40 of them.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from functools import partial

import pytest
from engine_bench import Bench
from hostile import check_episodes, hostile_episodes

from overlap.config.fields import Config, ModelConfig
from overlap.config.rollout import EpisodeConfig, RolloutConfig
from overlap.generate.client import EngineClient
from overlap.generate.engines import Engines
from overlap.generate.restart import RestartPolicy
from overlap.process.process_tree import read_proc

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800), pytest.mark.wide]

CFG = Config(
    model=ModelConfig(dtype="float32", prompt_tokens=200, response_tokens=24),
    rollout=RolloutConfig(temperature=0.7, max_sequences=16),
    episode=EpisodeConfig(tokens=800),
)


@pytest.fixture(scope="module")
def bench(tiny_policy, hosts_found, tmp_path_factory):
    bench = Bench(CFG, tiny_policy, tmp_path_factory.mktemp("s"))
    yield bench
    bench.close()


@pytest.mark.promise("exact-tokens")
def test_whatever_a_harness_does_the_learner_is_given_what_the_engine_saw(bench, tiny_policy) -> None:
    bench.run(bench.generator.load(bench.update()))
    work = hostile_episodes(bench.generator, tiny_policy, CFG.context_tokens, 0, 1000)
    check_episodes(bench, bench.runner.run(work))


def test_whichever_engine_is_killed_each_turn_of_an_episode_is_trained_once(bench, tiny_policy, tmp_path) -> None:
    kills, rng = 6, random.Random(6)

    def maker(number: int) -> partial[EngineClient]:
        scratch = tmp_path / str(number)
        scratch.mkdir()
        return partial(EngineClient, CFG, tiny_policy, scratch, standalone=True)

    replicas = Engines([maker(number) for number in range(2)], policy=RestartPolicy(restarts=kills), serving=True)

    async def kill() -> None:
        for _ in range(kills):
            await asyncio.sleep(rng.uniform(0.2, 2.0))
            victim = rng.choice(replicas._slots)
            again = victim.restarts + 1
            parts = [pid for pid in victim.engine.pids() if b"resource_tracker" not in read_proc(pid, "cmdline")]
            struck = rng.choice(parts)
            print("killed:", read_proc(struck, "cmdline"), flush=True)
            os.kill(struck, signal.SIGKILL)
            async with asyncio.timeout(300):
                while victim.restarts < again:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)

    async def main():
        await replicas.start()
        killing, found = asyncio.create_task(kill()), []
        while not killing.done():
            found += await hostile_episodes(replicas, tiny_policy, CFG.context_tokens, len(found), len(found) + 40)
        await killing
        return found

    try:
        found = bench.runner.run(main())
    finally:
        bench.run(replicas.close())
    assert replicas.resent
    check_episodes(bench, found)
