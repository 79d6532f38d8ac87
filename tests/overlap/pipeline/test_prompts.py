"""The order of the prompts: seeded, complete per epoch, addressable."""

from __future__ import annotations

import itertools

import pytest
from fake_parts import fake_prompts

from overlap.core.errors import ConfigError
from overlap.pipeline.prompts import PromptStream


def ids(stream: PromptStream, count: int) -> list[str]:
    return [p.id for p in itertools.islice(stream, count)]


@pytest.mark.promise("prompt-order")
def test_every_epoch_has_every_prompt_once_in_an_order_of_its_own() -> None:
    order = ids(PromptStream(fake_prompts(10), seed=3), 20)
    assert sorted(order[:10]) == sorted(order[10:]) == sorted(p.id for p in fake_prompts(10))
    assert order[:10] != order[10:]


def test_the_seed_decides_the_order() -> None:
    assert ids(PromptStream(fake_prompts(10), 1), 10) == ids(PromptStream(fake_prompts(10), 1), 10)
    assert ids(PromptStream(fake_prompts(10), 1), 10) != ids(PromptStream(fake_prompts(10), 2), 10)


@pytest.mark.promise("prompt-order")
@pytest.mark.parametrize("position", [0, 3, 10, 17])
def test_a_stream_can_begin_anywhere(position: int) -> None:
    whole = ids(PromptStream(fake_prompts(10), 5), 30)
    assert ids(PromptStream(fake_prompts(10), 5, position), 30 - position) == whole[position:]


def test_no_prompts_and_doubled_ids_are_refused() -> None:
    with pytest.raises(ConfigError, match="no prompts"):
        PromptStream([], 0)
    with pytest.raises(ConfigError, match="two prompts"):
        PromptStream(fake_prompts(2) * 2, 0)
