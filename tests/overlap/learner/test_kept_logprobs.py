"""The learner tells its log-probs of the kept samples: those before the step, of every branch, without a pass more."""

from __future__ import annotations

import math
from array import array
from dataclasses import replace
from typing import Any

import pytest
from learners import config, make_batch, ppo
from plain_backend import plain_trainer
from wide import wide

from overlap.core import Batch, Group, Packed, Prompt, Request, Scored, Trajectory, VersionSpan, kept_groups
from overlap.learner.kept_logprobs import KeptLogprobs, join_kept
from overlap.learner.learner import ProcessLearner
from overlap.learner.micro_batch import flatten, micro_batches

PROMPT = Prompt("p", (1, 2, 3))


def expected(trainer: Any, branch: Trajectory) -> list[float]:
    """One sequence at a time; 0 where others said the token."""
    values = trainer.logprobs([*branch.prompt_ids, *branch.token_ids])[-len(branch.token_ids) :]
    mask = branch.mask or b"\1" * len(values)
    return [value if sampled else 0.0 for value, sampled in zip(values, mask, strict=True)]


def episodes() -> Batch:
    """A group of an episode with a fork, one of turns, and a plain answer."""

    def made(sample: int, **more: Any) -> Trajectory:
        ids = tuple(range(10 * sample + 10, 10 * sample + 17))
        spans = (VersionSpan(0, 0, 7),)
        return Trajectory(Request(0, sample, PROMPT), ids, (-5.0,) * 7, "", "stop", spans, 0.0, 1.0, **more)

    fork = replace(made(0), prompt_ids=(1, 2, 3, 10, 11, 95), token_ids=(14, 15, 16), logprobs=(-5.0,) * 3)
    fork = replace(fork, spans=(VersionSpan(0, 0, 3),))
    idle = replace(fork, mask=b"\0\0\0", spans=())
    turns = b"\1\1\0\0\0\1\1"
    samples = (made(0, mask=turns, forks=(fork, idle)), made(1, mask=turns), made(2))
    scored = tuple(Scored(each, float(number)) for number, each in enumerate(samples))
    return Batch(1, 0, (Group(0, PROMPT, scored, (-1.0, 0.5, 1.0)),))


@pytest.mark.promise("samples")
@pytest.mark.parametrize(
    ("learn", "batch", "left_out"),
    [
        ({}, make_batch(0), ()),
        wide({"micro_batch_tokens": 4096}, make_batch(0), ()),
        ({"loss": "cispo", "updates_per_step": 3}, make_batch(0), ()),
        wide({"loss": "pg"}, make_batch(0), ()),
        ({"loss": "pg", "updates_per_step": 4}, make_batch(0), (1, 2, 3)),
        wide({"lora_rank": 4, "kl_coef": 0.1}, make_batch(0), ()),
        ({"advantage": "gae", "updates_per_step": 2}, make_batch(0), ()),
        wide({"kl_coef": 0.1, "kl_in": "reward"}, make_batch(0), ()),
        wide({}, episodes(), ()),
        ({"micro_batch_tokens": 4096}, episodes(), ()),
    ],
)
def test_the_log_probs_of_kept_samples_are_those_before_the_step(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, learn: dict[str, Any], batch: Batch, left_out: tuple[int, ...]
) -> None:
    cfg = ppo(**learn) if learn.get("advantage") == "gae" else config(**learn)
    trainer = plain_trainer(monkeypatch, cfg, tiny, total_updates=4)
    kept = [group.id for group in batch.groups]
    known = {s.id: [expected(trainer, branch) for branch in s.trajectory.branches] for s in batch.samples}
    trainer.step(flatten(batch, truncated=cfg.learn.truncated, kept=kept))
    found = join_kept(batch, kept, [trainer.kept.take()], bootstraps=cfg.learn.truncated == "bootstrap")
    assert found.keys() == {s.id for s in batch.samples if s.trajectory.request.group not in left_out}
    for name, branches in found.items():
        assert len(branches) == len(known[name])
        for one, other in zip(branches, known[name], strict=True):
            assert isinstance(one, Packed)
            assert list(one) == pytest.approx(other, abs=1e-4)
    assert trainer.kept.take() == {}


def test_a_last_token_that_is_not_in_the_loss_has_no_log_prob() -> None:
    import torch

    plain = episodes()
    cut = tuple(replace(s, trajectory=replace(s.trajectory, finish="length")) for s in plain.samples)
    batch = replace(plain, groups=(replace(plain.groups[0], samples=cut),))
    (group,) = flatten(batch, truncated="bootstrap", kept=[0])
    store = KeptLogprobs()
    rows = [replace_row(group.prompt, response) for response in group.responses]
    for micro in micro_batches(rows, 1):
        store.add(micro, torch.full((micro.rows[0].counted,), -0.5))
    found = join_kept(batch, [0], [store.take()], bootstraps=True)
    assert [str(list(values)) for values in found["g0s0"]] == [
        "[-0.5, -0.5, 0.0, 0.0, 0.0, -0.5, nan]",
        "[-0.5, -0.5, nan]",
        "[0.0, 0.0, 0.0]",
    ]
    assert math.isnan(found["g0s2"][0][-1])


def replace_row(prompt: array[int], response: Any) -> Any:
    from overlap.learner.micro_batch import PromptGroup

    return PromptGroup(response.prompt or prompt, (response,))


class Answering:
    """Stands in for ranks of which each has a part."""

    async def call_all(self, name: str, groups: Any, version: int, *, timeout_s: float) -> list[Any]:
        responses = [r for group in groups for r in group.responses if r.kept_as]
        told = [(r.kept_as, Packed("f", [-0.5] * len(r.tokens))) for r in responses]
        return [({"loss": 0.5}, dict(told[part::2])) for part in (0, 1)]


@pytest.mark.parametrize("samples", ["some", "all", "none"])
async def test_a_step_joins_what_the_ranks_tell_of_the_samples_that_are_kept(tmp_path: Any, samples: str) -> None:
    cfg = config()
    cfg = replace(cfg, run=replace(cfg.run, samples=samples))
    learner = ProcessLearner(cfg, tmp_path, tmp_path, total_updates=1)
    ranks: Any = Answering()
    learner._ranks = ranks
    batch = make_batch(0)
    report = await learner.step(batch)
    wanted = {s.id for group in batch.groups if group.id in kept_groups(batch) for s in group.samples}
    assert report.logprobs.keys() == (set() if samples == "none" else wanted)
