"""Agent programs as rollouts: what they find, how they end, and that nothing of them is left."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pytest
from agent_runs import AGENT, Mine, either, rolled

from overlap.core import Prompt
from overlap.core.errors import RolloutError
from overlap.server import harness as harness_


def test_it_finds_the_tasks_files_and_its_answer_is_what_the_task_makes_of_what_it_leaves(tmp_path) -> None:
    made = rolled(tmp_path, f"{AGENT} writes")
    assert (made.text, made.finish, made.turns) == ("written: a2", "stop", 2)
    assert sum(made.mask) == 6
    assert made.forks == ()


@either
def test_one_that_crashes_has_no_reward_and_is_told_with_what_it_wrote(rolled, tmp_path) -> None:
    made = rolled(tmp_path, f"{AGENT} crashes")
    assert made.finish == "abort"
    assert made.failure == "episode.command ended with 1: it broke"


@either
def test_a_command_that_is_none_is_told_as_the_shell_tells_it(rolled, tmp_path) -> None:
    assert "no-such-program" in rolled(tmp_path, "no-such-program --help").failure


@pytest.mark.promise("harnesses")
@pytest.mark.parametrize("what", ["leaves", "crashes"])
def test_what_it_leaves_running_is_dead_when_its_episode_has_ended(tmp_path, what: str) -> None:
    rolled(tmp_path, f"{AGENT} {what}; {AGENT} leaves")


@either
def test_one_whose_budget_is_used_up_is_truncated_however_it_ends(rolled, tmp_path) -> None:
    made = rolled(tmp_path, f"TURNS=5 {AGENT} ends", turns=3)
    assert (made.finish, made.failure, made.text) == ("length", "", "a3")


@pytest.mark.parametrize(
    ("what", "letters", "finish", "crashed"),
    [
        ("ends", 200, "length", False),
        ("ends", 100_000, "length", False),
        ("ends", 17 << 20, "length", False),
        ("gives up", 200, "length", False),
        ("forgets", 200, "stop", False),
        ("forgets and crashes", 200, "abort", True),
    ],
)
def test_one_that_meets_the_end_of_the_context_is_truncated_unless_it_goes_on(
    tmp_path, what: str, letters: int, finish: str, crashed: bool
) -> None:
    made = rolled(tmp_path, f"TURNS=30 LETTERS={letters} {AGENT} '{what}'", turns=40)
    assert (made.finish, bool(made.failure)) == (finish, crashed)
    assert crashed or made.text.startswith("a")


@either
def test_one_that_stays_when_its_budget_is_used_up_is_ended(rolled, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(harness_, "GRACE_S", 0.1)
    made = rolled(tmp_path, f"TURNS=5 {AGENT} stays", turns=2)
    assert (made.finish, made.failure) == ("length", "")


@pytest.mark.promise("harnesses")
@either
def test_one_that_hangs_is_ended_with_its_time_and_all_that_it_began(rolled, tmp_path) -> None:
    made = rolled(tmp_path, f"{AGENT} hangs", timeout_s=5.0)
    assert (made.turns, made.finish, made.failure) == (2, "length", "")


def test_one_whose_keeper_is_killed_has_crashed_and_leaves_nothing(tmp_path) -> None:
    assert rolled(tmp_path, f"{AGENT} 'kills its keeper'; true").failure.startswith("episode.command ended with 137")


@either
def test_a_file_outside_its_directory_is_an_error_of_the_task(rolled, tmp_path) -> None:
    class Outside(Mine):
        def files(self, prompt: Prompt, text: str) -> Mapping[str, str]:
            return {"../out.txt": text}

    with pytest.raises(RolloutError, match=r"files names '../out.txt'"):
        rolled(tmp_path, f"{AGENT} ends", Outside())


SWALLOWS = """
import json, os, urllib.error, urllib.request
body = json.dumps({"messages": [{"role": "user", "content": "x"}], "n": 2}).encode()
for _ in range(3):
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
    request.add_header("authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
    try:
        urllib.request.urlopen(request)
    except urllib.error.HTTPError:
        pass
"""


@pytest.mark.parametrize(
    ("program", "why", "refused"),
    [
        ("pass", "it asked for none", {}),
        (SWALLOWS, "n: it would change what the trainer samples, or is not spoken here; leave it out", {"n": 3}),
    ],
    ids=["asks for nothing", "swallows a refusal"],
)
def test_an_episode_without_a_turn_has_failed_and_says_why(tmp_path, program: str, why: str, refused: Any) -> None:
    made = rolled(tmp_path, f"{sys.executable} -S -c '{program}'")
    assert (made.finish, made.failure) == ("abort", f"episode.command had no turn: {why}")
    assert made.used is not None
    assert made.used.refused == refused


def test_a_program_that_fails_by_a_refusal_names_it_beside_its_own_words(tmp_path) -> None:
    made = rolled(tmp_path, f"{sys.executable} -S -c '{SWALLOWS}\nraise SystemExit(3)'")
    assert made.failure.startswith("episode.command ended with 3")
    assert made.failure.endswith("the first of its requests that was refused: n: it would change what the trainer "
                                 "samples, or is not spoken here; leave it out")  # fmt: skip
