"""The learner on the driver's side: what it refuses, what it saves, and its schedule."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import nullcontext

import pytest

from overlap.config.fields import Config, ModelConfig
from overlap.config.learn import LearnConfig
from overlap.config.rollout import RolloutConfig
from overlap.core import Batch, Group, Prompt, Request, Scored, Trajectory, VersionSpan
from overlap.core.errors import ConfigError, LearnerError, StaleBatchError
from overlap.learner.learner import ProcessLearner
from overlap.learner.saved_state import LearnerState, check_base, read_state, write_state
from overlap.learner.zero.backend import learning_rate
from overlap.policy.check import policy_digest

PROMPT = Prompt("p", (1, 2, 3))


def batch(*versions, version=0, reward=1.0):
    samples = tuple(
        Scored(
            Trajectory(Request(0, i, PROMPT), (4, 5), (-1.0, -1.0), "", "stop", (VersionSpan(v, 0, 2),), 0.0, 1.0),
            reward,
        )
        for i, v in enumerate(versions)
    )
    return Batch(version + 1, version, (Group(0, PROMPT, samples, (1.0,) * len(samples)),) if samples else ())


def learner(tmp_path, **rollout):
    return ProcessLearner(Config(rollout=RolloutConfig(**rollout)), tmp_path, tmp_path, total_updates=1)


@pytest.mark.promise("construction")
def test_construction_starts_nothing_and_needs_no_loop(tmp_path):
    made = learner(tmp_path)
    assert made.pids() == ()
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        asyncio.run(made.close())


@pytest.mark.parametrize(
    ("holds", "given", "error", "says"),
    [
        (3, batch(3, 1, 2, version=3), StaleBatchError, r"g0s1 is 2 versions old at step 4, rollout\.max_staleness=1"),
        (0, batch(1), StaleBatchError, "-1 versions old"),
        (0, batch(2, version=2), LearnerError, r"batch\.version=2, but the learner holds version 0"),
        (0, batch(), LearnerError, "no token to learn from"),
        (0, batch(0, 0, reward=None), LearnerError, "no token to learn from"),
    ],
)
def test_a_batch_that_is_not_for_this_learner_is_refused_before_anything_is_learned(
    tmp_path, holds, given, error, says
):
    made = learner(tmp_path, max_staleness=1)
    made._version = holds
    with pytest.raises(error, match=says):
        asyncio.run(made.step(given))


class Saving:
    """Stands in for the ranks: writes what it is told to save, version by version."""

    version = 0

    def saving(self, folder):
        return nullcontext([folder])

    async def call(self, name, timeout_s, each):
        ((folder, kind),) = each
        self.version += 1
        folder.mkdir()
        (folder / kind).write_text(str(self.version))
        return self.version


def test_a_save_that_is_cancelled_while_it_takes_its_place_leaves_a_whole_policy(tmp_path, monkeypatch):
    made, policy = learner(tmp_path), tmp_path / "policy"
    made._ranks = Saving()
    entered, release = threading.Event(), threading.Event()
    rename = os.rename

    def slow(*args):
        entered.set()
        assert release.wait(20)
        rename(*args)

    async def main():
        await made.save(policy, kind="policy")
        monkeypatch.setattr(os, "rename", slow)
        task = asyncio.create_task(made.save(policy, kind="policy"))
        assert await asyncio.to_thread(entered.wait, 20)
        task.cancel()
        for _ in range(20):
            await asyncio.to_thread(int)  # threads that tidy up too early would do it meanwhile
        assert not task.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert (policy / "policy").read_text() == "2"
    assert os.listdir(tmp_path) == ["policy"]


def of(dtype="bfloat16", **learn):
    return Config(model=ModelConfig(dtype=dtype), learn=LearnConfig(**learn))


@pytest.mark.promise("restored")
@pytest.mark.parametrize(
    ("wrote", "reads", "more", "says"),
    [
        (of(ranks=2), of(), {}, None),
        (of(advantage="gae"), of(advantage="gae"), {"critic_updates": 3}, None),
        (of(lora_rank=4), of(lora_rank=4), {"lora_rank": 4, "base": "1f"}, None),
        (of(), of("float32"), {}, r"was written with model\.dtype=bfloat16: resume with that, this run has float32"),
        (of(advantage="gae"), of(), {"critic_updates": 3}, r"has a critic: resume with learn\.advantage=gae, .* group"),
        (of(), of(advantage="gae"), {}, r"has no critic: resume without learn\.advantage=gae, this run has gae"),
        (of(lora_rank=4), of(), {"lora_rank": 4}, r"was written with learn\.lora_rank=4: resume with that, .* has 0"),
    ],
)
def test_a_state_is_restored_only_by_a_learner_of_its_kind(tmp_path, wrote, reads, more, says):
    state = LearnerState(version=3, updates=6, ranks=wrote.learn.ranks, zero_stage=2, **more)
    write_state(tmp_path, wrote, state)
    with pytest.raises(ConfigError, match=says) if says else nullcontext():
        assert read_state(tmp_path, reads) == state


@pytest.mark.parametrize("content", [None, "{}", "{", '{"version": 3}', "[3]"])
def test_what_is_no_state_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "learner.json").write_text(content)
    with pytest.raises(ConfigError, match="has no learner state that can be read"):
        read_state(tmp_path, Config())


def test_adapters_are_refused_on_another_policy_than_theirs(tmp_path):
    ours, other = tmp_path / "ours", tmp_path / "other"
    for folder in (ours, other):
        folder.mkdir()
        (folder / "config.json").write_text(folder.name)
    state = LearnerState(1, 2, 1, 2, lora_rank=4, base=policy_digest(ours))
    check_base(tmp_path, state, ours)
    with pytest.raises(ConfigError, match=r"^model\.policy=.*the adapters in .* were trained on another policy"):
        check_base(tmp_path, state, other)
    check_base(tmp_path, LearnerState(1, 2, 1, 2), other)


def test_the_rate_warms_up_and_then_follows_its_schedule():
    def rates(schedule, total=10):
        learn = LearnConfig(lr=1.0, warmup_steps=2, schedule=schedule)
        return [learning_rate(i, learn, total) for i in range(total)]

    assert rates("constant") == [0.5] + [1.0] * 9
    assert rates("linear") == pytest.approx([0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125])
    assert rates("cosine")[2] == 1.0
    assert rates("cosine")[6] == pytest.approx(0.5)
    assert learning_rate(10, LearnConfig(lr=1.0, schedule="linear"), 10) == 0.0
    assert learning_rate(99, LearnConfig(lr=1.0, schedule="cosine"), 10) == 0.0
