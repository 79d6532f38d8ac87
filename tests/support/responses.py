"""Groups of responses as the driver sends them to the learner's ranks."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

from overlap.learner.micro_batch import PromptGroup, Response


def response(tokens: Sequence[int], advantage: float = 1.0, *, engine: float = -1.0) -> Response:
    """To each token the engine gave the same log-prob."""
    return Response(array("i", tokens), array("f", [engine] * len(tokens)), advantage)


def some_groups(seed: int = 0, groups: int = 3, advantages: Sequence[float] = (-1.0, 1.0)) -> list[PromptGroup]:
    """Groups of four responses of 2 to 20 random tokens, one of them of a single token; prompts have up to 15."""
    rng = random.Random(seed)

    def tokens(low: int, high: int) -> list[int]:
        return [rng.randrange(259) for _ in range(rng.randint(low, high))]

    def group(number: int) -> PromptGroup:
        each = [tokens(1, 1) if number == sample == 0 else tokens(2, 20) for sample in range(4)]
        prompt = array("i", tokens(1, 15))
        return PromptGroup(prompt, tuple(response(own, rng.choice(advantages), engine=-5.0) for own in each))

    return [group(number) for number in range(groups)]


def each_alone(groups: Sequence[PromptGroup]) -> list[PromptGroup]:
    """A group for each response: none shares its prompt."""
    return [PromptGroup(group.prompt, (one,)) for group in groups for one in group.responses]
