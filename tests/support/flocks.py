"""Doubles of engines side by side, and the door before them."""

import asyncio

from mortal import Mortal

from overlap.core import Prompt, Request, WeightUpdate
from overlap.generate import Patience, Replicas, SteadyGenerator


class Flock:
    """Steady engines side by side, the doubles that they have had, and what they were told."""

    def __init__(self, count=2, kind=Mortal, sleeps=False, serving=False, **patience):
        self.lives = [[] for _ in range(count)]
        self.told, self._kind, self._sleeps, self._serving = [], kind, sleeps, serving
        self.steady = [self._steady(index, Patience(**patience)) for index in range(count)]
        self.door = Replicas(self.steady, sleeps=sleeps, serving=serving)

    def _steady(self, index, patience):
        def make():
            self.lives[index].append(self._kind(10 * index + len(self.lives[index])))
            if self._serving:
                self.engine(index).version = 0
                self.engine(index).open.set()
            return self.engine(index)

        return SteadyGenerator(
            make,
            alone=False,
            serving=self._serving,
            sleeps=self._sleeps,
            patience=patience,
            tell=self.told.append,
        )

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
