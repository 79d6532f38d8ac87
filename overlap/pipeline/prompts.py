"""The order in which prompts are admitted: seeded, and addressable by position so that a run can be resumed."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from overlap.config.fields import Config
from overlap.core import Group, Prompt
from overlap.core.errors import ConfigError
from overlap.pipeline.solved import Solved, groups_behind


class PromptStream(Iterator[Prompt]):
    """Every prompt once per epoch, each epoch in its own seeded order. ``position`` counts prompts handed out.

    Without end; with ``solved``, an epoch leaves out what that says, and ``tell`` gets a line for each; there is an end
    where every prompt would be left out (``ended``).
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        seed: int,
        position: int = 0,
        solved: Solved | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        if not prompts:
            raise ConfigError("data.train", "", "has no prompts; check the file and model.prompt_tokens")
        ids = [p.id for p in prompts]
        if len(set(ids)) != len(ids):
            twice = next(i for i in ids if ids.count(i) > 1)
            raise ConfigError("data.train", twice, "is the id of two prompts; make the ids unique")
        self._prompts, self._seed, self._first = tuple(prompts), seed, position
        self.position = position
        self.solved, self._tell = solved, tell
        self.ended = False
        """True when a prompt was asked for and there was none."""
        self._order: list[int] = []
        self._epoch = -1
        self._starts = [0]
        """Position at which each epoch begins, up to the end of the last one that has begun; only with ``solved``."""

    @classmethod
    def of(
        cls,
        cfg: Config,
        prompts: Sequence[Prompt],
        position: int = 0,
        known: Mapping[str, int] | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> PromptStream:
        """The stream of a run by ``cfg`` of which ``position`` groups are learned from; ``known`` is what these
        solved.
        """
        bound = cfg.data.drop_solved
        solved = Solved(bound, groups_behind(cfg), known, position) if bound else None
        return cls(prompts, cfg.run.seed, position, solved, tell)

    @property
    def known(self) -> dict[str, int]:
        """Prompts that epochs to come leave out, and the group that solved each."""
        return self.solved.groups if self.solved is not None else {}

    @property
    def figures(self) -> dict[str, int]:
        """{"solved": how many}; nothing where solved prompts are not left out."""
        return {"solved": len(self.solved)} if self.solved is not None else {}

    def note(self, groups: Iterable[Group]) -> None:
        """A step took these groups, and what it learned from them serves in the engine."""
        if self.solved is not None:
            self.solved.note(groups)

    def peek(self) -> Prompt:
        """The next prompt, without handing it out; where none is left, any one."""
        try:
            return self.at(self.position)
        except LookupError:
            return self._prompts[0]

    def at(self, position: int) -> Prompt:
        """The prompt of any position, which is the number of its group; admits nothing. Raises LookupError where every
        prompt is left out.
        """
        epoch, start = self._epoch_of(position)
        if epoch != self._epoch:
            order = list(range(len(self._prompts)))
            random.Random(f"prompts/{self._seed}/{epoch}").shuffle(order)
            out = self._left_out(start)
            self._order = [i for i in order if self._prompts[i].id not in out]
            self._epoch = epoch
        return self._prompts[self._order[position - start]]

    def _epoch_of(self, position: int) -> tuple[int, int]:
        """Number of the epoch that has this position, and where it begins."""
        if self.solved is None:
            epoch = position // len(self._prompts)
            return epoch, epoch * len(self._prompts)
        while position >= (start := self._starts[-1]):
            out = self._left_out(start)
            left = sum(prompt.id not in out for prompt in self._prompts)
            if not left:
                raise LookupError("every prompt is solved")
            if self._tell and out and start >= self._first:
                self._tell(f"epoch {len(self._starts)} leaves out {self._share(left)}")
            self._starts.append(start + left)
        epoch = bisect_right(self._starts, position) - 1
        return epoch, self._starts[epoch]

    def _share(self, left: int) -> str:
        assert self.solved is not None
        count = len(self._prompts)
        return f"{count - left} of {count} prompts, solved at data.drop_solved={self.solved.bound:g} or more"

    def _left_out(self, start: int) -> frozenset[str]:
        return self.solved.before(start) if self.solved is not None else frozenset()

    def __next__(self) -> Prompt:
        try:
            prompt = self.at(self.position)
        except LookupError:
            self.ended = True
            if self._tell:
                self._tell(f"the run ends here: the next epoch would leave out {self._share(0)}")
            raise StopIteration from None
        self.position += 1
        return prompt
