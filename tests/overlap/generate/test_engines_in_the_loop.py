"""Several engines in the loop: the batches, the books and the probe."""

import asyncio

import pytest
from fake_parts import FakeGenerator, FakeLearner, FakeVerifier, fake_prompts
from flocks import Flock, request
from mortal import Mortal
from virtual_clock import run_virtual as run

from overlap.config.fields import Config, RunConfig
from overlap.config.rollout import RolloutConfig
from overlap.core.errors import ParityError
from overlap.generate.engines import Engines
from overlap.pipeline.learning import Components, Learning
from overlap.pipeline.loop import overlapped
from overlap.pipeline.prompts import PromptStream


class Fakes(Engines):
    """Fake engines, which all give the same answers."""

    def __init__(self, count, **fake):
        self.fakes = [FakeGenerator(**fake) for _ in range(count)]
        super().__init__([lambda fake=fake: fake for fake in self.fakes])


CFG = Config(
    rollout=RolloutConfig(groups_per_step=4, samples_per_group=4, max_sequences=4, max_staleness=1),
    run=RunConfig(steps=6),
)


def batches(generator, cfg=CFG):
    """What the learner is given, in the order of the steps."""
    learner = FakeLearner(seconds=lambda rng: 1.0)

    async def on_step(result):
        return None

    async def main():
        components = Components(generator, FakeVerifier(seconds=lambda rng: rng.uniform(0, 2)), learner)
        await overlapped(components, cfg, PromptStream(fake_prompts(40), 0), on_step)
        await generator.close()

    run(main())
    return [[(s.id, s.reward, tuple(s.trajectory.token_ids)) for s in batch.samples] for batch in learner.batches]


@pytest.mark.promise("replicas")
@pytest.mark.parametrize("count", [2, 4])
def test_several_engines_make_the_same_batches_as_one(count):
    timed = {"seconds": lambda rng: rng.uniform(1, 5), "slots": 4}
    flock = Fakes(count, **timed)
    assert batches(flock) == batches(FakeGenerator(**timed))
    assert all(len(fake.loads) == 7 for fake in flock.fakes)


class Killable(Mortal):
    """A fake that can be killed, and whose answers are those of any other."""

    def __init__(self, number):
        super().__init__(number)
        self.fake = FakeGenerator(seconds=lambda rng: rng.uniform(1, 5), slots=4)

    async def generate(self, asked):
        self.sent.append(asked.id)
        work = asyncio.create_task(self.fake.generate(asked))
        end = asyncio.create_task(self._end.wait())
        try:
            await asyncio.wait([work, end], return_when=asyncio.FIRST_COMPLETED)
            await self._alive()
            return await work
        finally:
            work.cancel()
            end.cancel()

    async def load(self, new):
        await self._alive()
        await self.fake.load(new)
        self.version = new.version

    async def logprobs(self, token_ids):
        await self._alive()
        return await self.fake.logprobs(token_ids)


@pytest.mark.promise("kills")
def test_the_books_balance_with_one_killed_and_the_batches_are_the_same():
    flock = Flock(2, kind=Killable)
    generate, count = flock.door.generate, 0

    async def counting(asked):
        nonlocal count
        count += 1
        if count == 30:
            flock.engine(1).die()
        return await generate(asked)

    flock.door.generate = counting
    killed = batches(flock.door)
    assert killed == batches(FakeGenerator(seconds=lambda rng: rng.uniform(1, 5), slots=4))
    assert len(flock.lives[1]) == 2
    assert flock.lives[1][1].sent
    assert flock.door.resent > 0


@pytest.mark.promise("parity")
def test_an_engine_that_serves_other_weights_than_the_learner_is_found_whichever_it_is():
    for wrong in range(3):
        flock = Fakes(3)

        async def main(flock=flock, wrong=wrong):
            learning = Learning(Components(flock, FakeVerifier(), FakeLearner()), CFG, 0, 0)
            await learning.load()
            sample = await flock.generate(request(0))
            assert await learning.check_parity(sample) == 0
            flock.fakes[wrong].version = 5
            with pytest.raises(ParityError, match="by 5 on average"):
                await learning.check_parity(sample)
            await flock.close()

        run(main())
