"""Doubles of engines side by side, and the door before them."""

import asyncio

from async_tests import supplied
from mortal import Mortal, turns
from virtual_clock import run_virtual

from overlap.core import Prompt, Request, WeightUpdate
from overlap.generate.engines import Engines
from overlap.generate.restart import RestartPolicy


class Flock:
    """Engines side by side, the doubles that each of them has had, and what was told of them. ``broken`` has the errors
    of starts, by the number of the double. Those that are ``serving`` have weights of their own.
    """

    def __init__(self, count=1, kind=Mortal, broken=(), sleeps=False, serving=False, **policy):
        self.lives = [[] for _ in range(count)]
        self.told, self.watched, self.outages = [], [], []
        self._kind, self._broken, self._serving = kind, dict(broken), serving
        self.door = Engines(
            [self._maker(index) for index in range(count)],
            sleeps=sleeps,
            serving=serving,
            policy=RestartPolicy(**policy),
            notify=self.told.append,
            watch=self.watched.append,
            on_recovered=self.outages.append,
        )

    def _maker(self, index):
        def make():
            made = self._kind(10 * index + len(self.lives[index]))
            made.broken = self._broken.get(made.number)
            self.lives[index].append(made)
            if self._serving:
                made.version = 0
                made.open.set()
            return made

        return make

    def run(self, coroutine):
        """Run on a clock that jumps, and close."""

        async def closing():
            try:
                return await coroutine
            finally:
                await self.door.close()

        return run_virtual(closing())

    def engine(self, index):
        return self.lives[index][-1]

    @property
    def last(self):
        """The engine of a flock of one."""
        return self.engine(0)

    @property
    def sent(self):
        """Ids by engine, those of its earlier lives included."""
        return [[id for life in lives for id in life.sent] for lives in self.lives]

    def send(self, *places):
        return [asyncio.create_task(self.door.generate(request(*place))) for place in places]

    def hold(self):
        for lives in self.lives:
            lives[-1].release.clear()

    async def begun(self, count=1):
        """Requests in flight in engines that serve version 0."""
        await self.door.load(update(0))
        self.hold()
        tasks = self.send(*((3, sample) for sample in range(count)))
        await turns()
        assert sum(map(len, self.sent)) == count
        return tasks

    async def reload(self, version):
        """What the loop does for an engine that has come up again."""
        await self.door.wants_weights()
        await self.door.load(update(version))


def with_flock(*args, **options):
    """Decorate an async test: it gets a flock of these, runs on a clock that jumps, and the flock is closed."""

    def decorate(test):
        def run(work):
            flock = Flock(*args, **options)
            flock.run(work(flock))

        return supplied(test, run)

    return decorate


def request(group=3, sample=0):
    return Request(group, sample, Prompt(f"p{group}", (1, 2)))


def update(version, backend="shm"):
    return WeightUpdate(version, backend, {})
