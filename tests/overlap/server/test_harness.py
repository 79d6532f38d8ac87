"""Agent programs as rollouts: what they find, how they end, and that nothing of them is left."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from agent_runs import AGENT, Mine, rolled

from overlap.core import Prompt
from overlap.errors import RolloutError
from overlap.server import harness as harness_


def test_it_finds_the_tasks_files_and_its_answer_is_what_the_task_makes_of_what_it_leaves(tmp_path) -> None:
    made = rolled(tmp_path, f"{AGENT} writes")
    assert (made.text, made.finish, made.turns) == ("written: a2", "stop", 2)
    assert sum(made.mask) == 6
    assert made.forks == ()


def test_it_is_asked_for_plain_tracebacks_which_take_no_time(tmp_path) -> None:
    assert rolled(tmp_path, f"{AGENT} ends; printenv TYPER_STANDARD_TRACEBACK > answer.txt").text == "1\n"


def test_by_default_the_answer_is_what_the_policy_said_last(tmp_path) -> None:
    assert rolled(tmp_path, f"TURNS=3 {AGENT} ends").text == "a3"


def test_one_that_crashes_has_no_reward_and_is_told_with_what_it_wrote(tmp_path) -> None:
    made = rolled(tmp_path, f"{AGENT} crashes")
    assert made.finish == "abort"
    assert made.failure == "episode.command ended with 1: it broke"


def test_a_command_that_is_none_is_told_as_the_shell_tells_it(tmp_path) -> None:
    assert "no-such-program" in rolled(tmp_path, "no-such-program --help").failure


@pytest.mark.parametrize("what", ["leaves", "crashes"])
def test_what_it_leaves_running_is_dead_when_its_episode_has_ended(tmp_path, what: str) -> None:
    rolled(tmp_path, f"{AGENT} {what}; {AGENT} leaves")


def test_one_whose_budget_is_used_up_is_truncated_however_it_ends(tmp_path) -> None:
    made = rolled(tmp_path, f"TURNS=5 {AGENT} ends", turns=3)
    assert (made.finish, made.failure, made.text) == ("length", "", "a3")


def test_one_that_stays_when_its_budget_is_used_up_is_ended(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(harness_, "GRACE_S", 0.1)
    made = rolled(tmp_path, f"TURNS=5 {AGENT} stays", turns=2)
    assert (made.finish, made.failure) == ("length", "")


def test_one_that_hangs_is_ended_with_its_time_and_all_that_it_began(tmp_path) -> None:
    made = rolled(tmp_path, f"{AGENT} hangs", timeout_s=5.0)
    assert (made.turns, made.finish, made.failure) == (2, "length", "")


def test_one_whose_keeper_is_killed_has_crashed_and_leaves_nothing(tmp_path) -> None:
    assert rolled(tmp_path, f"{AGENT} 'kills its keeper'; true").failure.startswith("episode.command ended with 137")


def test_a_file_outside_its_directory_is_an_error_of_the_task(tmp_path) -> None:
    class Outside(Mine):
        def files(self, prompt: Prompt, text: str) -> Mapping[str, str]:
            return {"../out.txt": text}

    with pytest.raises(RolloutError, match=r"files names '../out.txt'"):
        rolled(tmp_path, f"{AGENT} ends", Outside())
