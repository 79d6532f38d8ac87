"""Results that no step has taken come back from a checkpoint as they were."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from finished_steps import awkward, given_up

from overlap.core import Prompt, Scored, Used
from overlap.errors import ConfigError
from overlap.record.carryover import CARRIED, Carryover, save_carryover


def back(folder: Path, at_s: float = 0.0) -> tuple[Scored, ...]:
    return Carryover.load(folder).scored(lambda group: Prompt(f"p{group % 3}", (1, 2, group % 3)), at_s)


def unset(*nouns: Any) -> set[str]:
    """Fields that have their default in all of them."""
    return {f.name for f in fields(nouns[0]) if all(getattr(noun, f.name) == f.default for noun in nouns)}


def test_everything_of_a_result_comes_back_bit_for_bit(tmp_path: Path) -> None:
    fork = awkward(prompt_ids=(7, 8, 9), mask=b"\1\0\1").trajectory
    turns = {
        "turns": 2,
        "forks": (fork,),
        "failure": "it crashed",
        "used": Used(3, 9, 30, 16, 1, 0, 5, {"n": 2}, {"tool_choice": 1}),
    }
    episode = awkward(prompt_ids=(7, 8), mask=b"\1\0\1", **turns)  # of two turns, and one that was thrown away
    results = (awkward(), given_up(), episode)
    save_carryover(tmp_path, results, 0.0)
    assert back(tmp_path) == results
    assert len(Carryover.load(tmp_path)) == 3
    assert unset(*results) == set()  # a field that results get must be carried too
    assert unset(*(s.trajectory for s in results)) == {"cached_tokens"}  # of a turn; an episode's are in "used"
    same_for_all_or_of_a_turn = {"temperature", "top_p", "turn", "max_tokens", "stop"}
    assert unset(*(s.trajectory.request for s in results)) == same_for_all_or_of_a_turn


def test_on_another_clock_no_time_has_passed_since_the_checkpoint(tmp_path: Path) -> None:
    save_carryover(tmp_path, [awkward(), given_up()], 20.0)
    first, second = back(tmp_path, 3.0)
    assert (first.trajectory.started_s, first.trajectory.finished_s) == (-7.0, -4.5)
    assert (first.queued_s, first.started_s, first.finished_s) == (-4.5, -4.0, -3.0)
    assert (second.queued_s, second.started_s, second.finished_s) == (0.0, 0.0, 0.0)  # was never verified


def test_a_token_takes_eight_bytes_and_their_base64(tmp_path: Path) -> None:
    tokens = 10_000
    sizes = []
    for one in (awkward(), awkward(token_ids=(9,) * tokens, logprobs=(-0.5,) * tokens)):
        save_carryover(tmp_path, [one], 0.0)
        sizes.append((tmp_path / CARRIED).stat().st_size)
    assert sizes[1] - sizes[0] < 8 * tokens * 4 / 3 + 100


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda text: "", "cannot be read"),
        (lambda text: text[: len(text) // 2], "cannot be read"),
        (lambda text: text.splitlines()[0] + "\n", "has 0 of 1 samples"),
        (lambda text: text.replace('"format": 1', '"format": 9'), "has another format than 1"),
        (lambda text: text.replace('"token_ids": "', '"token_ids": "!'), "cannot be read"),
        (lambda text: text.replace('"finish"', '"ende"'), "cannot be read"),
        (lambda text: text.replace('"prompt": "p1"', '"prompt": "p2"'), "group 4 was of prompt 'p2', here it is of"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, spoil, told: str) -> None:
    save_carryover(tmp_path, [awkward()], 0.0)
    file = tmp_path / CARRIED
    file.write_text(spoil(file.read_text()))
    with pytest.raises(ConfigError, match=told) as caught:
        back(tmp_path)
    assert str(file) in str(caught.value)
