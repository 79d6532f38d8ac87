"""The order in which prompts enter: seeded, endless, and addressable by position so that a run can be resumed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from overlap.core import Prompt
from overlap.errors import ConfigError


class PromptStream(Iterator[Prompt]):
    """Every prompt once per epoch, each epoch in its own seeded order. ``position`` counts prompts handed out."""

    def __init__(self, prompts: Sequence[Prompt], seed: int, position: int = 0) -> None:
        if not prompts:
            raise ConfigError("data.train", "", "has no prompts; check the file and model.prompt_tokens")
        ids = [p.id for p in prompts]
        if len(set(ids)) != len(ids):
            twice = next(i for i in ids if ids.count(i) > 1)
            raise ConfigError("data.train", twice, "is the id of two prompts; ids must be unique")
        self._prompts, self._seed = tuple(prompts), seed
        self.position = position
        self._order: list[int] = []
        self._epoch = -1

    def peek(self) -> Prompt:
        """The next prompt, without handing it out."""
        return self.at(self.position)

    def at(self, position: int) -> Prompt:
        """The prompt of any position, which is the number of its group; hands out nothing."""
        epoch, index = divmod(position, len(self._prompts))
        if epoch != self._epoch:
            self._order = list(range(len(self._prompts)))
            random.Random(f"prompts/{self._seed}/{epoch}").shuffle(self._order)
            self._epoch = epoch
        return self._prompts[self._order[index]]

    def __next__(self) -> Prompt:
        prompt = self.at(self.position)
        self.position += 1
        return prompt
