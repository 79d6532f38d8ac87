"""A learner's state is gone on with by other numbers of ranks, and under other ZeRO stages, than it was written by."""

from __future__ import annotations

from pathlib import Path

import pytest
from learners import PROBE, config, make_batch, run
from wide import wide

from overlap.config import Config
from overlap.learner import read_state
from overlap.learner.saved_state import LearnerState

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

from overlap.policy import make_tiny_policy

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    return make_tiny_policy(tmp_path_factory.mktemp("tiny"), vocab=2048)  # large enough for ZeRO-3 to shard


# (ranks, ZeRO stage) that wrote and that go on: all that are cut differently, in float32 for exactness. ZeRO 1 in
# bfloat16 is a class of its own in DeepSpeed.
RECUT = [
    wide((2, 1), (1, 1), "float32"),
    wide((1, 2), (2, 2), "float32"),
    wide((2, 3), (1, 3), "float32"),
    wide((1, 3), (2, 3), "float32"),
    ((2, 2), (2, 3), "bfloat16"),
    wide((2, 2), (1, 1), "bfloat16"),
    wide((2, 1), (1, 2), "bfloat16"),
]


@pytest.mark.parametrize(("wrote", "goes_on", "dtype"), RECUT)
def test_a_state_is_gone_on_with_by_other_ranks_and_stages(policy, tmp_path, wrote, goes_on, dtype):
    def of(kind) -> Config:
        return config(ranks=kind[0], zero_stage=kind[1], dtype=dtype, schedule="linear", weight_decay=0.01)

    async def whole(learner):
        await learner.step(make_batch(0))
        await learner.step(make_batch(1))
        await learner.save(tmp_path / "state", kind="state")
        before = await learner.logprobs(PROBE)
        return before, await learner.step(make_batch(2)), await learner.logprobs(PROBE)

    async def resumed(learner):
        await learner.restore(tmp_path / "state")
        before = await learner.logprobs(PROBE)
        report = await learner.step(make_batch(2))
        await learner.save(tmp_path / "again", kind="state")
        return before, report, await learner.logprobs(PROBE)

    exact = 1e-5 if dtype == "float32" else 0.05
    before, report, after = run(policy, tmp_path, of(wrote), whole)
    same_before, same_report, same_after = run(policy, tmp_path, of(goes_on), resumed)
    assert same_before == pytest.approx(before, abs=1e-6)
    assert same_after == pytest.approx(after, abs=exact)
    assert same_report.version == report.version == 3
    assert same_report.metrics["lr"] == report.metrics["lr"]
    for name in ("loss", "grad_norm"):
        assert same_report.metrics[name] == pytest.approx(report.metrics[name], abs=exact, rel=exact), name
    assert read_state(tmp_path / "again", of(goes_on)) == LearnerState(3, 3, *goes_on)
