"""Two real engines behind one door, each on a core of its own: one set of weights, and one is killed."""

import asyncio
import os
import signal
from functools import partial

import pytest
from engine_bench import Bench, core_of

from overlap.config.fields import Config, ModelConfig
from overlap.config.rollout import RolloutConfig
from overlap.core import Prompt, Request
from overlap.generate.client import EngineClient
from overlap.generate.engines import Engines
from overlap.placement.devices import devices_here
from overlap.placement.seats import place
from overlap.process.run_environment import run_name, shared_memory_names

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.skipif(len(devices_here("cpu").cores) < 2, reason="each engine needs a core of its own"),
]

PROMPT = tuple(range(40, 90))
GROUPS, SAMPLES = 6, 4
CFG = Config(
    model=ModelConfig(dtype="float32", prompt_tokens=64, response_tokens=200),
    rollout=RolloutConfig(temperature=0.7, max_sequences=4, replicas=2),
)


class Flock(Bench):
    """``sent`` are the groups that each engine was asked for."""

    def make(self, cfg, policy, scratch, host):
        self.told, self.sent = [], [set(), set()]
        placement = place(cfg, devices_here("cpu"))

        def made(index):
            engine = EngineClient(cfg, policy, scratch, host=host, placement=placement, engine=index)
            generate = engine.generate

            async def noting(request):
                self.sent[index].add(request.group)
                return await generate(request)

            engine.generate = noting
            return engine

        return Engines([partial(made, index) for index in range(2)], notify=self.told.append)

    @property
    def slots(self):
        return self.generator._slots

    def sample(self, first):
        asked = [Request(first + g, s, Prompt("p", PROMPT)) for g in range(GROUPS) for s in range(SAMPLES)]
        return [asyncio.create_task(self.generator.generate(request)) for request in asked]


def cores_of(pids):
    """The CPUs that threads of an engine are bound to, one each."""
    bound = set()
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            allowed = os.sched_getaffinity(int(task))
            bound |= allowed if len(allowed) == 1 else set()
    return bound


@pytest.mark.promise("replicas")
@pytest.mark.wide
def test_two_engines_share_the_work_with_one_set_of_weights_and_one_is_killed(tiny_policy, hosts_found, tmp_path):
    scratch = tmp_path / "s"
    scratch.mkdir()
    bench = Flock(CFG, tiny_policy, scratch)

    async def both_used():
        await bench.generator.load(bench.update())
        trajectories = await asyncio.gather(*bench.sample(0))
        probes = await bench.generator.logprobs(PROMPT)
        return trajectories, probes, [cores_of(slot.engine.pids()) for slot in bench.slots]

    async def one_killed():
        bench.learn()
        await bench.generator.load(bench.update())
        tasks = bench.sample(10)
        await asyncio.sleep(0.05)
        os.kill(core_of(bench.slots[1].engine.pids()), signal.SIGKILL)
        trajectories = await asyncio.gather(*tasks)
        up = bench.slots[1].restarts
        await bench.generator.wants_weights()
        await bench.generator.load(bench.update_again())
        bench.sent[1].clear()
        return up, trajectories, await asyncio.gather(*bench.sample(20))

    try:
        trajectories, probes, cores = bench.run(both_used())
        assert max(map(bench.gap, trajectories)) < 1e-4
        assert [len(groups) for groups in bench.sent] == [GROUPS // 2, GROUPS // 2]
        assert not bench.sent[0] & bench.sent[1]
        ours, _ = bench.logprobs(PROMPT)
        assert len(probes) == 2 * len(ours)
        assert max(abs(a - b) for a, b in zip(probes, [*ours, *ours], strict=True)) < 1e-4
        assert [len(bound) for bound in cores] == [1, 1]
        assert cores[0] != cores[1]
        assert len({t.token_ids for t in trajectories}) > GROUPS  # no two engines with the same draws
        up, trajectories, later = bench.run(one_killed())
        assert up == 0, "the requests waited for another engine"
        assert bench.generator.resent > 0
        assert max(map(bench.gap, [*trajectories, *later])) < 1e-4
        assert {span.version for t in (*trajectories, *later) for span in t.spans} == {1}
        assert bench.sent[1], "the engine that came up again got no work"
        assert sorted(path.name for path in scratch.glob("*.log")) == ["engine-0.log", "engine-1.log"]
    finally:
        bench.close()
    assert shared_memory_names(run_name(scratch)) == []
