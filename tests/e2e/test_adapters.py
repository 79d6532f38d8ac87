"""Adapters that go to the real engine alone: what it samples is what the learner's policy with them gives, for new and
for running responses, and after its death; a sync brings no more than their bytes.
"""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
import torch
from engine_bench import Bench, core_of

from overlap.config.fields import Config, ModelConfig
from overlap.config.learn import LearnConfig
from overlap.config.rollout import RolloutConfig
from overlap.core import Prompt, Request, WeightUpdate
from overlap.core.errors import EngineError
from overlap.generate.client import EngineClient
from overlap.generate.engines import Engines
from overlap.learner.lora import alone
from overlap.weights.shm import open_sender

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

BOUND = 2e-6
"""Nats. A log-prob of 8 has a spacing of 1e-6 in float32: single tokens may be twice as far off."""
PROMPT = tuple(range(40, 90))
CFG = Config(
    model=ModelConfig(dtype="float32", prompt_tokens=64, response_tokens=128),
    rollout=RolloutConfig(temperature=1.0, max_sequences=4),
    learn=LearnConfig(lora_rank=4),
)


@pytest.fixture(scope="module")
def bench(tiny_policy, hosts_found, tmp_path_factory):
    made = Bench(CFG, tiny_policy, tmp_path_factory.mktemp("s"))
    yield made
    made.close()


def send(bench):
    return [
        asyncio.create_task(bench.generator.generate(Request(bench.version, i, Prompt("p", PROMPT)))) for i in range(4)
    ]


def loaded(bench, update):
    async def main():
        await bench.generator.load(update)
        return await asyncio.gather(*send(bench))

    return bench.run(main())


def check(gaps):
    """Of each token, nats."""
    assert sorted(gaps)[int(0.99 * len(gaps))] < BOUND, max(gaps)
    assert max(gaps) < 2 * BOUND


def check_all(bench, trajectories):
    assert {span.version for t in trajectories for span in t.spans} == {bench.version}
    check([gap for t in trajectories for gap in bench.gaps(t)])


@pytest.mark.promise("adapters")
def test_what_is_sampled_is_what_the_learners_adapter_gives_and_a_sync_brings_its_bytes_alone(bench):
    size = sum(4 * (adapter.down.numel() + adapter.up.numel()) for adapter in bench.adapters.values())
    torch.manual_seed(0)
    trajectories = []
    for version in range(4):
        if version:
            bench.learn()
        if trajectories:
            assert max(map(bench.gap, trajectories)) > 0.1, "what is learned changes nothing"
        update = bench.update()
        assert size <= update.info["size"] < size + 64 * 2 * len(bench.adapters)  # tensors are aligned
        trajectories = loaded(bench, update)
        check_all(bench, trajectories)
        ours, _ = bench.logprobs(list(PROMPT))
        probe = bench.run(bench.generator.logprobs(PROMPT))
        check([abs(a - b) for a, b in zip(probe, ours, strict=True)])


@pytest.mark.promise("adapters")
def test_running_responses_go_on_as_if_the_new_adapter_had_read_all_of_them(bench):
    async def main():
        running = send(bench)
        while not any(n >= 4 for n in (await bench.generator._peer.call("sampled")).values()):
            assert not all(task.done() for task in running)
        bench.learn()
        await bench.generator.load(bench.update())
        return await asyncio.gather(*running)

    crossed = []
    while not crossed:  # all of them may have ended before the load
        before = bench.weights()
        crossed = [t for t in bench.run(main()) if len(t.spans) == 2]
    after = bench.weights()
    for t in crossed:
        start = t.spans[1].start
        check(bench.gaps(t)[start:])
        bench.put(before)
        check(bench.gaps(t)[:start])
        assert max(bench.gaps(t)[start:]) > 0.1
        bench.put(after)


@pytest.mark.promise("adapters")
def test_an_adapter_that_lacks_a_layer_is_refused_and_the_next_whole_one_is_served(bench):
    short = dict(list(bench.adapters.items())[:-1])
    sender = open_sender("shm", rank=0)
    bench.learn()
    update = WeightUpdate(bench.version + 1, "shm", sender.prepare(alone(short, 0)))
    with pytest.raises(EngineError, match=r"the adapters of 1 layers were not sent, .*down_proj"):
        bench.run(bench.generator.load(update))
    sender.close()
    check_all(bench, loaded(bench, bench.update()))


class Mortal(Bench):
    def make(self, cfg, policy, scratch, host):
        return Engines([lambda: EngineClient(cfg, policy, scratch, host=host)])


@pytest.mark.wide
def test_an_engine_that_follows_a_dead_one_has_the_policy_and_gets_the_newest_adapter(
    tiny_policy, hosts_found, tmp_path
):
    scratch = tmp_path / "s"
    scratch.mkdir()
    bench = Mortal(CFG, tiny_policy, scratch)

    async def killed():
        os.kill(core_of(bench.generator.pids()), signal.SIGKILL)
        await bench.generator.wants_weights()

    try:
        bench.run(bench.generator.load(bench.update()))
        bench.learn()
        check_all(bench, loaded(bench, bench.update()))
        bench.run(killed())
        check_all(bench, loaded(bench, bench.update_again()))
        assert bench.generator.restarts == 1
    finally:
        bench.close()
