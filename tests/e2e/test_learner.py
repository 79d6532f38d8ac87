"""The real learner: DeepSpeed ranks take the steps that plain torch takes, and nothing of them outlives anyone."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
import torch
import transformers
from learners import PROBE, config, distance, make_batch, run, sent
from plain_backend import plain_trainer
from wide import wide

from overlap.config.fields import Config
from overlap.core import Batch, kept_groups
from overlap.core.errors import LearnerError, RunDirError
from overlap.learner.losses import token_loss
from overlap.learner.micro_batch import SplitConfig, flatten, mini_batches
from overlap.learner.model import load_policy, plain
from overlap.learner.saved_state import export_policy
from overlap.learner.tensors import to_tensors

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def by_plain_torch(policy: Path, cfg: Config, batches: list[Batch]):
    """The same steps: one sequence at a time, one process, torch's AdamW. Returns model, losses, gradient norms, and of
    each step the log-probs before it by sample.
    """
    model = load_policy(policy, dtype=torch.float32, temperature=0.8, device=torch.device("cpu"))
    model.policy.set_attn_implementation("eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.learn.lr, weight_decay=cfg.learn.weight_decay)
    losses, norms, before = [], [], []
    for batch in batches:
        (mini,) = mini_batches(flatten(batch, kept=kept_groups(batch)), SplitConfig(1, 1, 1, 64))
        before.append({})
        optimizer.zero_grad()
        total = 0.0
        for micro in mini.ranks[0]:
            t = to_tensors(micro)
            new = model(t)[0]
            if kept_as := micro.rows[0].responses[0].kept_as:
                before[-1][kept_as[0]] = new.tolist()
            loss = token_loss(new, t.sampled, cfg.learn).total / mini.counted
            loss.backward()
            total += loss.item()
        losses.append(total)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.learn.grad_clip).item())
        optimizer.step()
    return model, losses, norms, before


def expected_logprobs(model) -> list[float]:
    with torch.no_grad():
        return model(plain(list(PROBE), torch.device("cpu")))[0].tolist()


@pytest.mark.promise("learner")
@pytest.mark.parametrize(
    ("ranks", "zero_stage", "more"),
    [
        wide(1, 2, {}),
        wide(2, 1, {"recompute": "always"}),
        wide(2, 2, {}),
        wide(2, 3, {"recompute": "always"}),
        wide(2, 2, {"sequence_parallel": 2}),
        (2, 3, {"sequence_parallel": 2, "recompute": "always"}),
    ],
)
def test_every_stage_and_number_of_ranks_takes_the_steps_of_plain_torch(policy, tmp_path, ranks, zero_stage, more):
    cfg = config(ranks=ranks, zero_stage=zero_stage, **more)
    batches = [make_batch(0), make_batch(1), make_batch(2)]
    model, losses, norms, before = by_plain_torch(policy, cfg, batches)

    async def use(learner):
        reports = [await learner.step(batch) for batch in batches]
        update = await learner.publish(3)
        weights = sent(update.info)
        await learner.transmit(update)
        await learner.retire(update)
        assert await learner.save(tmp_path / "policy", kind="policy") == 3
        assert await learner.save(tmp_path / "state", kind="state") == 3
        return reports, weights, await learner.logprobs(PROBE)

    reports, served, logprobs = run(policy, tmp_path, cfg, use)
    assert [r.version for r in reports] == [1, 2, 3]
    assert [r.metrics["loss"] for r in reports] == pytest.approx(losses, abs=1e-5)
    assert [r.metrics["grad_norm"] for r in reports] == pytest.approx(norms, rel=1e-4)
    assert reports[0].metrics["tokens"] == sum(len(s.trajectory.token_ids) for s in batches[0].samples)
    for report, known in zip(reports, before, strict=True):
        assert report.logprobs.keys() == known.keys() != set()
        for name, (found,) in report.logprobs.items():
            assert list(found) == pytest.approx(known[name], abs=1e-3)
    assert logprobs == pytest.approx(expected_logprobs(model), abs=1e-3)
    weights = dict(model.policy.named_parameters())
    assert served.keys() == weights.keys()
    # Adam makes steps of equal size from gradients of any size, rounding errors included: compare the whole way gone.
    start = dict(transformers.AutoModelForCausalLM.from_pretrained(policy).named_parameters())
    gone = distance(weights, start)
    assert gone > 1.0
    assert distance(weights, served) < 1e-2 * gone
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "policy")("a").input_ids
    assert export_policy(tmp_path / "state", cfg, policy, tmp_path / "export") == 3
    for made in ("policy", "export"):
        for name, tensor in transformers.AutoModelForCausalLM.from_pretrained(tmp_path / made).named_parameters():
            assert torch.equal(tensor, served[name]), name
    assert {p.name for p in (tmp_path / "export").iterdir()} == {p.name for p in (tmp_path / "policy").iterdir()}


MINE = """
import torch
from overlap.learner.correction import Weights

def my_loss(new, anchor, sampled, low, high):
    return -sampled.advantages * (new - anchor).exp(), new > 0

def my_correction(anchor, sampled, bound):
    half = torch.full_like(anchor, 0.5)
    return Weights(half, half > 0, half > bound)
"""


@pytest.mark.promise("own-functions")
def test_ranks_train_by_functions_of_the_user_that_lie_where_the_run_was_started(policy, tmp_path, monkeypatch):
    """Half of what "pg" without a correction does: its loss, and its gradient."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    cfg = config(ranks=2, loss="mine:my_loss", correction="mine:my_correction", grad_clip=1e6)
    batch = make_batch(0)

    async def use(learner):
        return (await learner.step(batch)).metrics

    found = run(policy, tmp_path, cfg, use)
    plain_cfg = config(loss="pg", correction="none", grad_clip=1e6)
    expected = plain_trainer(monkeypatch, plain_cfg, policy, total_updates=10).step(flatten(batch))
    for name in ("loss", "grad_norm"):
        assert found[name] == pytest.approx(expected[name] / 2, rel=1e-4)
    assert (found["is_capped_fraction"], found["is_masked_fraction"], found["clip_fraction"]) == (1.0, 0.0, 0.0)


@pytest.mark.wide
def test_steps_too_small_for_bfloat16_weights_add_up_in_float32(policy, tmp_path):
    cfg = config(dtype="bfloat16", lr=1e-5, weight_decay=0.0)

    async def use(learner):
        before = await learner.logprobs(PROBE)
        for version in range(40):
            report = await learner.step(make_batch(0, version=version))
        assert report.metrics["tokens_padded_share"] == 0.0  # prompts are shared, in spite of rounding
        return before, await learner.logprobs(PROBE)

    before, after = run(policy, tmp_path, cfg, use)
    assert max(abs(a - b) for a, b in zip(after, before, strict=True)) > 0.01


def test_a_file_that_cannot_be_written_ends_no_rank_and_a_killed_one_is_named_and_ends_all(policy, tmp_path):
    async def use(learner):
        (tmp_path / "file").touch()
        for kind in ("policy", "state"):
            with pytest.raises(RunDirError, match="cannot be written"):
                await learner.save(tmp_path / "file" / kind, kind=kind)
        assert (await learner.step(make_batch(0))).version == 1
        assert await learner.save(tmp_path / "policy", kind="policy") == 1
        watcher = asyncio.create_task(learner.wait_dead())
        _, second = learner.pids()
        stepping = asyncio.create_task(learner.step(make_batch(1)))
        os.kill(second, signal.SIGKILL)
        async with asyncio.timeout(180):
            with pytest.raises(LearnerError, match=rf"rank 1 \(pid {second}\) was killed by SIGKILL"):
                await stepping
            for later in (watcher, learner.logprobs(PROBE)):
                with pytest.raises(LearnerError, match="SIGKILL"):
                    await later

    run(policy, tmp_path, config(ranks=2, zero_stage=3), use)


@pytest.mark.wide
def test_a_shard_that_one_rank_cannot_write_is_refused_by_all(policy, tmp_path, monkeypatch):
    """Rank 1's file lies where a folder is: rank 0 has written its own, and none waits for the other."""

    async def use(learner):
        monkeypatch.setattr("overlap.learner.learner.partial_path", lambda path: tmp_path / ".partial")
        blocked = tmp_path / ".partial" / "deepspeed" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
        blocked.mkdir(parents=True)
        with pytest.raises(RunDirError, match="cannot be written"):
            await learner.save(tmp_path / "state", kind="state")
        assert not (tmp_path / "state").exists()
        assert (await learner.step(make_batch(0))).version == 1
        assert await learner.save(tmp_path / "state", kind="state") == 1

    run(policy, tmp_path, config(ranks=2), use)
