"""The punishment of long responses, and what it leaves as it was."""

from __future__ import annotations

import math

import pytest

from overlap.clock import run_virtual
from overlap.config import LearnConfig, load_config
from overlap.core import Group, Prompt, Request, Scored, Trajectory
from overlap.errors import ConfigError
from overlap.fakes import FakeGenerator, FakeLearner, FakeVerifier, fake_prompts
from overlap.pipeline import Doors, PromptStream, StepResult, overlapped, serial
from overlap.pipeline.advantage import advantages, complete
from overlap.pipeline.group import make_group
from overlap.pipeline.shaping import Overlong, overlong_punishment
from overlap.record.metrics import punishment_row

PROMPT = Prompt("p", (1, 2))


def dapo(length: int, most: int, cache: int) -> float:
    """Eq. 13 of DAPO as it stands there, for rewards of -1 and 1."""
    if length <= most - cache:
        return 0.0
    return ((most - cache) - length) / cache if length <= most else -1.0


def scored(sample: int, reward: float | None, length: int, finish: str = "stop") -> Scored:
    trajectory = Trajectory(Request(0, sample, PROMPT), (5,) * length, (-0.5,) * length, "x", finish, (), 0.0, 1.0)  # type: ignore[arg-type]
    return Scored(trajectory, reward)


def group_of(*samples: tuple[float | None, int], overlong: Overlong, std: bool = True, finish: str = "stop") -> Group:
    made = [scored(k, reward, length, finish) for k, (reward, length) in enumerate(samples)]
    learn = LearnConfig(normalize_advantages=std, truncated="zero")
    return make_group(0, PROMPT, made[::-1], learn, overlong)


@pytest.mark.parametrize(("most", "cache"), [(20480, 4096), (100, 100), (7, 1), (16, 5)])
def test_the_punishment_is_half_of_dapos(most: int, cache: int) -> None:
    for length in {0, 1, most - cache - 1, most - cache, most - cache + 1, most - cache // 2, most - 1, most, most + 1}:
        found = overlong_punishment(length, Overlong(most, cache))
        assert found == pytest.approx(dapo(length, most, cache) / 2, abs=1e-15)


def test_the_published_case_by_hand() -> None:
    dapos = Overlong(limit=20480, interval=4096)
    lengths = (16384, 17408, 18432, 20480)
    assert [overlong_punishment(n, dapos) for n in lengths] == [0.0, -0.125, -0.25, -0.5]


def test_advantages_are_those_of_dapos_rewards() -> None:
    overlong = Overlong(100, 40)
    samples = [(1.0, 50), (1.0, 80), (0.0, 100), (0.0, 10), (1.0, 100), (0.0, 61)]
    theirs = advantages([2 * r - 1 + dapo(n, 100, 40) for r, n in samples], normalize_std=True)
    assert group_of(*samples, overlong=overlong).advantages == pytest.approx(theirs)


def test_a_long_right_answer_stays_better_than_a_short_wrong_one() -> None:
    group = group_of((1.0, 100), (0.0, 1), (1.0, 1), overlong=Overlong(100, 40), std=False)
    assert group.advantages[0] - group.advantages[1] == pytest.approx(0.5)
    assert group.punishments == (-0.5, 0.0, 0.0)
    assert group.rewards == (1.0, 0.0, 1.0)


def test_lengths_alone_make_no_group_worth_learning_from() -> None:
    assert group_of((1.0, 100), (1.0, 1), overlong=Overlong(100, 40)).dropped == "equal_rewards"
    assert group_of((0.0, 100), (0.0, 1), overlong=Overlong(100, 40)).dropped == "equal_rewards"
    assert group_of((0.0, 100), (0.0, 9), overlong=Overlong(100, 40), finish="length").dropped == "all_truncated"
    assert group_of((1.0, 100), (0.5, 1), overlong=Overlong(100, 40)).dropped == ""


@pytest.mark.parametrize("advantage", ["global", "gae"])
def test_what_is_made_an_advantage_later_is_the_punished_reward(advantage: str) -> None:
    """By the step, or by the learner's critic."""
    learn, samples = LearnConfig(advantage=advantage, truncated="zero"), [scored(0, 1.0, 100), scored(1, 1.0, 1)]
    group = make_group(0, PROMPT, samples, learn, Overlong(100, 40))
    assert (group.advantages, group.dropped) == ((0.5, 1.0), "")
    done = complete((group,), learn)[0]
    assert done.dropped == ("equal_rewards" if advantage == "global" else "")


def test_a_sample_without_a_reward_is_not_punished() -> None:
    group = group_of((None, 100), (1.0, 100), (0.0, 1), overlong=Overlong(100, 40), std=False)
    assert group.advantages == pytest.approx((0.0, 0.25, -0.25))


def test_without_an_interval_nothing_is_as_much_as_looked_at() -> None:
    group = group_of((1.0, 100), (0.0, 100), overlong=Overlong(100, 0))
    assert group == group_of((1.0, 100), (0.0, 100), overlong=Overlong())
    assert group.punishments == ()


def test_an_interval_as_long_as_a_response_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learn\.overlong_tokens=256: .*model\.response_tokens=256"):
        load_config(None, ["learn.overlong_tokens=256"])


@pytest.mark.parametrize("loop", [serial, overlapped])
def test_a_run_punishes_by_its_limit_and_tells_rewards_as_the_task_gave_them(loop) -> None:
    asked = {"rollout.groups_per_step": 4, "rollout.samples_per_group": 4, "run.steps": 3}
    asked |= {"model.response_tokens": 16, "learn.overlong_tokens": 8, "learn.normalize_advantages": False}
    cfg = load_config(None, [f"{name}={value}" for name, value in asked.items()])
    results: list[StepResult] = []

    async def on_step(result: StepResult) -> None:
        results.append(result)

    doors = Doors(FakeGenerator(seed=2), FakeVerifier(seed=2), FakeLearner())
    run_virtual(loop(doors, cfg, PromptStream(fake_prompts(5), 0), on_step))
    for group in (g for r in results for g in (*r.batch.groups, *r.batch.dropped)):
        shaped = [s.reward + overlong_punishment(len(s.trajectory.token_ids), Overlong(16, 8)) for s in group.samples]
        centre = math.fsum(shaped) / 4
        assert {s.reward for s in group.samples} <= {0.0, 1.0}
        assert group.advantages == pytest.approx([r - centre for r in shaped])
    row = punishment_row(results[0])
    assert -0.5 < row["reward/overlong_mean"] < 0 < row["reward/overlong_share"] < 1
