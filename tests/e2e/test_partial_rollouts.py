"""Engine and learner take turns: responses that are not at their end sleep with the engine and go on with new weights.

A CPU's engine gives up no memory when it sleeps; it stands still, forgets its KV cache and keeps its requests, as on
GPUs.
"""

import asyncio
import itertools
import os
import signal
from dataclasses import replace

import pytest
from engine_bench import Bench, core_of
from fake_parts import FakeLearner, FakeVerifier
from wide import wide

from overlap import load_config, train
from overlap.config.fields import Config, ModelConfig, RunConfig
from overlap.config.rollout import RolloutConfig
from overlap.core import Prompt, Request
from overlap.generate.client import EngineClient
from overlap.generate.engines import Engines
from overlap.pipeline.learning import Components
from overlap.pipeline.loop import Position, overlapped
from overlap.pipeline.prompts import PromptStream
from overlap.placement.seats import Placement
from overlap.record.json_lines import read_json_lines
from overlap.record.metrics import read_steps

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

EXACT = 2e-6
"""Nats, in float32, for 99 % of the tokens; the others within twice that."""
PROMPT = tuple(range(40, 90))
SLOTS, STEPS = 3, 5  # no divisor of the 8 samples of a step: one of the next step is always under way
GROUPS = itertools.count()


class TurnsBench(Bench):
    """An engine that takes turns with the model. ``known`` are its weights by version."""

    def make(self, cfg, policy, scratch, host):
        def engine():
            client = EngineClient(cfg, policy, scratch, host=host)
            client._spec = replace(client._spec, sleeps=True)
            return client

        self.known = {}
        return Engines([engine], sleeps=True)

    def update_again(self):
        self.known[self.version] = self.weights()
        return super().update_again()

    @property
    def client(self):
        return self.generator._slots[0].engine

    def learn(self, size=0.01):
        """Always from the first weights, so that logits stay as small as they are, and their rounding."""
        self.put(self.known.get(0, {}))
        super().learn(size)

    async def asleep(self, during=None):
        """A turn of the learner, which changes every weight."""
        await self.generator.sleep()
        if during is not None:
            await during()
        self.learn()
        await self.generator.wake("weights")
        await self.generator.load(self.update())
        await self.generator.wake("cache")

    def send(self, count):
        group = next(GROUPS)
        return [
            asyncio.create_task(self.generator.generate(Request(group, i, Prompt("p", PROMPT)))) for i in range(count)
        ]

    async def tokens(self):
        """Sampled so far, by request."""
        return await self.client._peer.call("sampled")

    async def decoding(self, tasks, more=1):
        """Some of them have so many tokens more than now."""
        before = await self.tokens()
        while not all(task.done() for task in tasks):
            now = await self.tokens()
            if any(n >= before.get(id, 0) + more for id, n in now.items()):
                return

    def gaps_by_version(self, trajectory):
        """[T] differences of its log-probs to those of the weights that its spans name, nats."""
        assert [span.start for span in trajectory.spans] == [0, *(span.end for span in trajectory.spans[:-1])]
        assert trajectory.spans[-1].end == len(trajectory.token_ids)
        found = []
        for span in trajectory.spans:
            self.put(self.known[span.version])
            found += self.gaps(trajectory)[span.start : span.end]
        self.put(self.known[self.version])
        return found

    def check_exact(self, trajectories):
        """They have the log-probs of the weights that their spans name, but for rounding, which a response that never
        sleeps has too.
        """
        gaps = sorted(gap for trajectory in trajectories for gap in self.gaps_by_version(trajectory))
        most = gaps[int(0.99 * len(gaps))]
        print(f"{self.landing}: {len(gaps)} tokens, 99 % within {most:.1e} nats, all within {gaps[-1]:.1e}")
        assert most < EXACT
        assert gaps[-1] < 2 * EXACT


@pytest.fixture(scope="module", params=["recompute", wide("drain")])
def bench(request, tiny_policy, hosts_found, tmp_path_factory):
    cfg = Config(
        model=ModelConfig(dtype="float32", prompt_tokens=64, response_tokens=200),
        rollout=RolloutConfig(
            max_sequences=SLOTS,
            in_flight=request.param,
            max_staleness=1,
            groups_per_step=2,
            samples_per_group=4,
        ),
        run=RunConfig(steps=STEPS),
    )
    bench = TurnsBench(cfg, tiny_policy, tmp_path_factory.mktemp("s"))
    bench.cfg, bench.landing = cfg, request.param
    bench.known[0], bench.version = bench.weights(), 0
    bench.run(bench.asleep())
    yield bench
    bench.close()


@pytest.mark.promise("sleeping")
def test_a_response_sleeps_with_the_engine_and_goes_on_as_if_the_new_weights_had_read_all_of_it(bench):
    async def main():
        tasks = bench.send(2 * SLOTS)
        for _ in range(3):
            await bench.decoding(tasks, 8)
            await bench.asleep()
        return await asyncio.gather(*tasks)

    trajectories = bench.run(main())
    versions = [len(t.spans) for t in trajectories]
    bench.check_exact(trajectories)
    assert (max(versions) > 1) == (bench.landing == "recompute")


@pytest.mark.wide
def test_nothing_is_sampled_while_it_sleeps_and_what_is_asked_for_meanwhile_waits(bench):
    async def main():
        tasks, late = bench.send(SLOTS), []
        await bench.decoding(tasks, 8)

        async def during():
            before = await bench.tokens()
            late.extend(bench.send(2))
            dropped = tasks.pop()
            dropped.cancel()
            await asyncio.gather(dropped, return_exceptions=True)
            await asyncio.sleep(0.3)
            after = await bench.tokens()
            assert after.items() <= before.items()
            assert not any(task.done() for task in late)

        await bench.asleep(during)
        return await asyncio.gather(*tasks, *late), await bench.client._peer.call("unfinished")

    trajectories, left = bench.run(main())
    bench.check_exact(trajectories)
    assert {s.version for t in trajectories[-2:] for s in t.spans} == {bench.version}
    assert left == 0


class BenchLearner(FakeLearner):
    """The model of the bench, which changes with every step."""

    def __init__(self, bench):
        super().__init__(first_version=bench.version + 1, shares=True)
        self.bench = bench

    async def step(self, batch):
        self.bench.learn()
        return await super().step(batch)

    async def publish(self, version):
        return self.bench.update() if version > self.bench.version else self.bench.update_again()

    async def logprobs(self, token_ids):
        return self.bench.logprobs(token_ids)[0]


@pytest.mark.promise("sleeping")
def test_the_loop_trains_on_every_token_once_with_the_log_probs_of_the_weights_that_sampled_it(bench):
    learner, prompts = BenchLearner(bench), [Prompt(f"p{i}", PROMPT[i:]) for i in range(4)]

    async def on_step(result):
        pass

    async def main():
        at = Position(version=learner.version)
        components = Components(bench.generator, FakeVerifier(), learner)
        await overlapped(components, bench.cfg, PromptStream(prompts, 0), on_step, at)

    bench.run(main())
    samples = [s for batch in learner.batches for g in (*batch.groups, *batch.dropped) for s in g.samples]
    places = [(s.trajectory.request.group, s.trajectory.request.sample) for s in samples]
    expected = itertools.product(range(2 * STEPS), range(4))
    assert sorted(places) == sorted(expected)
    bench.check_exact(s.trajectory for s in samples)
    assert max(age for batch in learner.batches for age in batch.staleness) == 1
    assert any(len(s.trajectory.spans) > 1 for s in samples) == (bench.landing == "recompute")


@pytest.mark.wide
def test_what_slept_in_an_engine_that_was_killed_is_begun_anew(bench):
    async def main():
        tasks = bench.send(2 * SLOTS)
        await bench.decoding(tasks, 8)
        kept = []

        async def during():
            kept.extend(task for task in tasks if not task.done())
            os.kill(core_of(bench.client.pids()), signal.SIGKILL)

        await bench.asleep(during)
        return await asyncio.gather(*tasks), await asyncio.gather(*kept)

    trajectories, kept = bench.run(main())
    assert {s.version for t in kept for s in t.spans} <= {bench.version}
    assert bool(kept) == (bench.landing == "recompute")
    bench.check_exact(trajectories)


@pytest.mark.wide
def test_a_run_whose_parts_take_turns_evaluates_saves_and_trains_once_on_what_slept(policy, tmp_path, monkeypatch):
    monkeypatch.setattr(Placement, "sleeps", property(lambda placed: bool(placed.engines and placed.ranks)))
    settings = {
        "model": {"policy": str(policy), "dtype": "float32", "prompt_tokens": 64, "response_tokens": 160},
        "data": {"task": "toy:ToyTask"},
        "rollout": {"groups_per_step": 4, "samples_per_group": 4, "max_sequences": 16, "max_staleness": 1},
        "learn": {"lr": 1e-3, "micro_batch_tokens": 2048, "truncated": "zero"},
        "run": {"dir": str(tmp_path / "run"), "device": "cpu", "steps": 5, "save_every": 2, "samples": "all"}
        | {"eval_samples": 1, "eval_every": 2},
    }
    train(load_config(None, settings))
    rows = read_steps(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert max(row["rollout/staleness_max"] for row in rows) == 1
    assert max(row["rollout/partial_share"] for row in rows) > 0
    gaps = [row["learn/landing_gap_max"] for row in rows if row["learn/landing_gap_max"] is not None]
    print(f"engine and learner after a sleep: {max(gaps):.1e} nats apart")
    assert max(gaps) < 2 * EXACT
    kept = [row for row in read_json_lines(tmp_path / "run" / "trajectories.jsonl") if row["split"] == "train"]
    assert sorted((row["group"], row["sample"]) for row in kept) == [(g, s) for g in range(20) for s in range(4)]
