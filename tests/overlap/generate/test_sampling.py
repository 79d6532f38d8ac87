"""How a request is sampled."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlap.config.load import load_config
from overlap.core import Prompt, Request
from overlap.generate.client import EngineClient

PROMPT = Prompt("p", (1, 2, 3))


@pytest.mark.parametrize(
    ("asked", "temperature", "top_p"),
    [
        (Request(3, 0, PROMPT), 0.8, 1.0),
        (Request(-1, 0, PROMPT, 0.0), 0.0, 1.0),
        (Request(-1, 0, PROMPT, 0.25, 0.95), 0.25, 0.95),
    ],
)
def test_a_request_is_sampled_by_its_own_law_or_by_that_of_the_rollouts(
    tmp_path: Path, asked: Request, temperature: float, top_p: float
) -> None:
    generator = EngineClient(load_config(None, ["rollout.temperature=0.8"]), tmp_path, tmp_path)
    found = generator._sampling(asked)
    assert (found.temperature, found.top_p) == (temperature, top_p)


@pytest.mark.promise("prompt-order")
def test_an_older_group_goes_before_a_younger_and_an_evaluation_before_both(tmp_path: Path) -> None:
    generator = EngineClient(load_config(), tmp_path, tmp_path)
    first, *_, last = sorted((-1, 7, 3), key=lambda group: generator._sampling(Request(group, 0, PROMPT)).priority)
    assert (first, last) == (-1, 7)
