"""Doubles of engines side by side, and the door before them."""

import asyncio

from mortal import Mortal, closing

from overlap.clock import run_virtual
from overlap.core import Prompt, Request, WeightUpdate
from overlap.generate import Engines, RestartPolicy


class Flock:
    """Engines side by side, the doubles that each of them has had, and the lines that were told of them."""

    def __init__(self, count=2, kind=Mortal, sleeps=False, serving=False, **policy):
        self.lives = [[] for _ in range(count)]
        self.told, self._kind, self._serving = [], kind, serving
        self.door = Engines(
            [self._maker(index) for index in range(count)],
            sleeps=sleeps,
            serving=serving,
            policy=RestartPolicy(**policy),
            notify=self.told.append,
        )

    def _maker(self, index):
        def make():
            self.lives[index].append(self._kind(10 * index + len(self.lives[index])))
            if self._serving:
                self.engine(index).version = 0
                self.engine(index).open.set()
            return self.engine(index)

        return make

    def run(self, coroutine):
        """Run on a clock that jumps, and close."""
        return run_virtual(closing(self.door, coroutine))

    def engine(self, index):
        return self.lives[index][-1]

    @property
    def sent(self):
        """Ids by engine, those of its earlier lives included."""
        return [[id for life in lives for id in life.sent] for lives in self.lives]

    def send(self, *places):
        return [asyncio.create_task(self.door.generate(request(*place))) for place in places]

    def hold(self):
        for lives in self.lives:
            lives[-1].release.clear()


def request(group, sample=0):
    return Request(group, sample, Prompt(f"p{group}", (1, 2)))


def update(version, backend="shm"):
    return WeightUpdate(version, backend, {})
