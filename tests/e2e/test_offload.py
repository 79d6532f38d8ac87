"""States that leave and come back, in real ranks: bytes are freed, states are equal, and so is the next step."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from learners import PROBE, config, make_batch, published, run, told
from places import ROOT, SUPPORT
from wide import wide

from overlap.config.fields import Config
from overlap.learner import processes

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SLEEP = {"offload": "sleep"}
CRITIC = {"advantage": "gae", "updates_per_step": 2, "truncated": "mask"}
CASES = [
    (1, "bfloat16", {"kl_coef": 0.1}),
    (2, "float32", CRITIC),
    (3, "float32", CRITIC),
    (3, "bfloat16", {"kl_coef": 0.1}),
]
"""ZeRO 1 and 2 differ in nothing but this: DeepSpeed has an optimizer of its own for ZeRO 1 in bfloat16."""


def of(zero_stage: int, dtype: str, learn: dict) -> Config:
    critic = {"lambda_policy": 1.0} if "advantage" in learn else None
    return config(critic=critic, ranks=2, zero_stage=zero_stage, dtype=dtype, **learn)


async def step(learner, version):
    return told((await learner.step(make_batch(version))).metrics)


class Steps:
    """Four steps of a learner that never sleeps, for each case once."""

    def __init__(self, policy: Path, scratch: Path) -> None:
        self._policy, self._scratch, self._known = policy, scratch, dict[str, Any]()

    def of(self, *case):
        async def use(learner):
            reports = [await step(learner, version) for version in range(3)]
            data, logprobs = await published(learner, 3), await learner.logprobs(PROBE)
            reports.append(await step(learner, 3))
            return reports, data, logprobs, await published(learner, 4)

        if str(case) not in self._known:
            self._known[str(case)] = run(self._policy, self._scratch, of(*case), use)
        return self._known[str(case)]


@pytest.fixture(scope="module")
def awake(policy, tmp_path_factory) -> Steps:
    return Steps(policy, tmp_path_factory.mktemp("awake"))


@pytest.mark.promise("offload")
@pytest.mark.parametrize(
    ("zero_stage", "dtype", "learn"), [wide(*CASES[0]), wide(*CASES[1]), CASES[2], wide(*CASES[3])]
)
def test_a_learner_that_sleeps_has_its_states_bit_for_bit_again_and_takes_the_steps_of_one_that_does_not(
    policy, tmp_path, monkeypatch, awake, zero_stage, dtype, learn
):
    expected = awake.of(zero_stage, dtype, learn)
    monkeypatch.setattr(processes, "MODULE", "sleepy_rank")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(SUPPORT), str(ROOT))))

    async def use(learner):
        learner.shares = True
        call, reports, held, digests = learner._ranks.call, [], [], []

        async def sleep():
            await learner.sleep()
            held.append(await call("held", timeout_s=60))

        async def digest():
            await call("all_here", timeout_s=60)
            digests.append(await call("digest", timeout_s=60))

        for version in range(3):
            await published(learner, version)
            await sleep()
            reports.append(await step(learner, version))
        data = await published(learner, 3)
        sent = await call("held", timeout_s=60)
        await digest()
        await sleep()
        await digest()
        await sleep()
        await learner.save(tmp_path / "state", kind="state")
        await learner.save(tmp_path / "policy", kind="policy")
        logprobs = await learner.logprobs(PROBE)
        await sleep()
        reports.append(await step(learner, 3))
        last = await published(learner, 4)
        await sleep()
        await learner.restore(tmp_path / "state")
        again = await step(learner, 3)
        return reports, data, logprobs, last, held, sent, digests, again, await published(learner, 4)

    *found, held, sent, digests, again, after = run(policy, tmp_path, of(zero_stage, dtype, learn | SLEEP), use)
    assert tuple(found) == expected
    assert (again, after) == (expected[0][-1], expected[-1])
    assert digests[0] == digests[1]
    weights = len(found[1])
    assert max(held) < weights / 4
    assert sent - max(held) > weights / (2 if zero_stage == 3 else 1) * 0.9


@pytest.mark.wide
@pytest.mark.parametrize(
    ("zero_stage", "dtype", "learn"), [wide(*CASES[0]), CASES[2], wide(*CASES[1]), wide(*CASES[3])]
)
def test_an_optimizer_on_the_host_takes_the_same_steps(policy, tmp_path, awake, zero_stage, dtype, learn):
    async def use(learner):
        return [await step(learner, version) for version in range(3)], await learner.logprobs(PROBE)

    steps, logprobs = run(policy, tmp_path, of(zero_stage, dtype, learn | {"offload": "cpu"}), use)
    expected, _, same, _ = awake.of(zero_stage, dtype, learn)
    for one, other in zip(steps, expected, strict=False):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-4, nan_ok=True)
    assert logprobs == pytest.approx(same, abs=0.05 if dtype == "bfloat16" else 1e-3)
