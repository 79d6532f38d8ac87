"""How a request is sampled."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlap.config import load_config
from overlap.core import Prompt, Request
from overlap.generate.client import EngineClient

PROMPT = Prompt("p", (1, 2, 3))


@pytest.mark.parametrize(("asked", "sampled"), [(None, 0.8), (0.0, 0.0), (0.25, 0.25)])
def test_a_request_is_sampled_at_its_own_temperature_or_at_that_of_the_rollouts(
    tmp_path: Path, asked: float | None, sampled: float
) -> None:
    generator = EngineClient(load_config(None, ["rollout.temperature=0.8"]), tmp_path, tmp_path)
    assert generator._sampling(Request(-1, 0, PROMPT, asked)).temperature == sampled


@pytest.mark.parametrize(
    ("request_", "sampled"), [(Request(3, 0, PROMPT), 1.0), (Request(-1, 0, PROMPT, 0.6, 0.95), 0.95)]
)
def test_only_a_request_that_says_so_is_drawn_from_less_than_all_tokens(
    tmp_path: Path, request_: Request, sampled: float
) -> None:
    generator = EngineClient(load_config(), tmp_path, tmp_path)
    assert generator._sampling(request_).top_p == sampled


def test_an_older_group_goes_before_a_younger_and_an_evaluation_before_both(tmp_path: Path) -> None:
    generator = EngineClient(load_config(), tmp_path, tmp_path)
    first, *_, last = sorted((-1, 7, 3), key=lambda group: generator._sampling(Request(group, 0, PROMPT)).priority)
    assert (first, last) == (-1, 7)
