"""The real learner: DeepSpeed ranks take the steps that plain torch takes, and nothing of them outlives anyone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from learners import PROBE, config, make_batch, run
from wide import wide

from overlap.config import Config
from overlap.core import Batch, Group, Scored, VersionSpan
from overlap.errors import ConfigError, LearnerError, RunDirError
from overlap.learner import ProcessLearner, export_policy
from overlap.learner.micro_batch import SplitConfig, flatten, mini_batches
from overlap.process import Pid, identify

torch = pytest.importorskip("torch")
pytest.importorskip("deepspeed")
transformers = pytest.importorskip("transformers")

from plain_backend import plain_trainer  # noqa: E402

from overlap.learner.loss import LossConfig, token_loss  # noqa: E402
from overlap.learner.model import load_policy, plain  # noqa: E402
from overlap.learner.tensors import to_tensors  # noqa: E402
from overlap.policy import make_tiny_policy  # noqa: E402

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    return make_tiny_policy(tmp_path_factory.mktemp("tiny"), vocab=2048)  # large enough for ZeRO-3 to shard


def by_plain_torch(policy: Path, cfg: Config, batches: list[Batch]):
    """The same steps: one sequence at a time, one process, torch's AdamW. Returns model, losses and gradient norms."""
    model = load_policy(policy, dtype=torch.float32, temperature=0.8, device=torch.device("cpu"))
    model.policy.set_attn_implementation("eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.learn.lr, weight_decay=cfg.learn.weight_decay)
    losses, norms = [], []
    for batch in batches:
        (mini,) = mini_batches(flatten(batch), SplitConfig(1, 1, 1, 64, share_prompts=False))
        optimizer.zero_grad()
        total = 0.0
        for micro in mini.ranks[0]:
            t = to_tensors(micro)
            loss = token_loss(model(t)[0], t.sampled, LossConfig()).total / mini.counted
            loss.backward()
            total += loss.item()
        losses.append(total)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.learn.grad_clip).item())
        optimizer.step()
    return model, losses, norms


def expected_logprobs(model) -> list[float]:
    with torch.no_grad():
        return model(plain(list(PROBE), torch.device("cpu")))[0].tolist()


@pytest.mark.parametrize(
    ("ranks", "zero_stage", "more"),
    [
        wide(1, 2, {}),
        wide(2, 1, {"checkpointing": "always"}),
        wide(2, 2, {}),
        wide(2, 3, {"checkpointing": "always"}),
        wide(2, 2, {"sequence_parallel": 2}),
        (2, 3, {"sequence_parallel": 2, "checkpointing": "always"}),
    ],
)
def test_every_stage_and_number_of_ranks_takes_the_steps_of_plain_torch(policy, tmp_path, ranks, zero_stage, more):
    cfg = config(ranks=ranks, zero_stage=zero_stage, **more)
    batches = [make_batch(0), make_batch(1), make_batch(2)]
    model, losses, norms = by_plain_torch(policy, cfg, batches)

    async def use(learner):
        reports = [await learner.step(batch) for batch in batches]
        update = await learner.publish(3)
        sent = read_tensors(update.info)
        await learner.transmit(update)
        await learner.retire(update)
        assert await learner.save(tmp_path / "policy", kind="policy") == 3
        assert await learner.save(tmp_path / "state", kind="state") == 3
        return reports, sent, await learner.logprobs(PROBE)

    reports, sent, logprobs = run(policy, tmp_path, cfg, use)
    assert [r.version for r in reports] == [1, 2, 3]
    assert [r.metrics["loss"] for r in reports] == pytest.approx(losses, abs=1e-5)
    assert [r.metrics["grad_norm"] for r in reports] == pytest.approx(norms, rel=1e-4)
    assert reports[0].metrics["tokens"] == sum(len(s.trajectory.token_ids) for s in batches[0].samples)
    assert logprobs == pytest.approx(expected_logprobs(model), abs=1e-3)
    weights = dict(model.policy.named_parameters())
    assert sent.keys() == weights.keys()
    # Adam makes steps of equal size from gradients of any size, rounding errors included: compare the whole way gone.
    start = dict(transformers.AutoModelForCausalLM.from_pretrained(policy).named_parameters())
    gone = distance(weights, start)
    assert gone > 1.0
    assert distance(weights, sent) < 1e-2 * gone
    saved = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "policy")
    for name, tensor in saved.named_parameters():
        assert torch.equal(tensor, sent[name]), name
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "policy")("a").input_ids
    assert export_policy(tmp_path / "state", cfg, policy, tmp_path / "export") == 3
    exported = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    for name, tensor in exported.named_parameters():
        assert torch.equal(tensor, sent[name]), name
    assert {p.name for p in (tmp_path / "export").iterdir()} == {p.name for p in (tmp_path / "policy").iterdir()}


@pytest.mark.parametrize(
    ("kind", "correction"),
    [wide("ppo", "seq_mis"), wide("pg", "dppo"), wide("cispo", "seq_mis"), wide("gspo", "seq_mis")],
)
def test_ranks_and_micro_batches_change_neither_a_correction_nor_what_is_told_of_it(policy, tmp_path, kind, correction):
    """The engine's log-probs are near the learner's, so that some responses are masked and some are not."""
    found = []
    for ranks, zero_stage, tokens in ((1, 2, 4096), (2, 2, 64)):
        cfg = config(
            ranks=ranks, zero_stage=zero_stage, micro_batch_tokens=tokens, updates_per_step=2, correction=correction,
            loss=kind, correction_bound=1e-4 if correction == "dppo" else 1.2, lr=1e-3,
        )  # fmt: skip

        async def use(learner):
            report = await learner.step(await near(learner, make_batch(0)))
            return report.metrics, await learner.logprobs(PROBE)

        found.append(run(policy, tmp_path, cfg, use))
    (one, logprobs), (two, same) = found
    timed = {"forward_backward_s", "optimizer_s", "tokens_padded_share"}
    assert one.keys() == two.keys()
    told = {name: value for name, value in one.items() if name not in timed}
    assert {name: two[name] for name in told} == pytest.approx(told, rel=1e-3, abs=2e-5)
    assert same == pytest.approx(logprobs, abs=1e-3)
    assert 0.1 < one["is_masked_fraction"] < 0.9
    assert one["is_effective_fraction"] < 1.0
    assert one["landing_gap_mean"] == pytest.approx(0.3, abs=1e-3)
    assert ("update_kl" in one) == (kind != "pg")


MINE = """
import torch
from overlap.learner.correction import Weights

def my_loss(new, anchor, sampled, low, high):
    return -sampled.advantages * (new - anchor).exp(), new > 0

def my_correction(anchor, sampled, bound):
    half = torch.full_like(anchor, 0.5)
    return Weights(half, half > 0, half > bound)
"""


def test_ranks_train_by_functions_of_the_user_that_lie_where_the_run_was_started(policy, tmp_path, monkeypatch):
    """Half of what "pg" without a correction does: its loss, and its gradient."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    cfg = config(ranks=2, loss="mine:my_loss", correction="mine:my_correction", grad_clip=1e6)
    batch = make_batch(0)

    async def use(learner):
        return (await learner.step(batch)).metrics

    told = run(policy, tmp_path, cfg, use)
    plain_cfg = config(loss="pg", correction="none", grad_clip=1e6)
    expected = plain_trainer(monkeypatch, plain_cfg, policy, total_updates=10).step(flatten(batch))
    for name in ("loss", "grad_norm"):
        assert told[name] == pytest.approx(expected[name] / 2, rel=1e-4)
    assert (told["is_capped_fraction"], told["is_masked_fraction"], told["clip_fraction"]) == (1.0, 0.0, 0.0)


async def near(learner: ProcessLearner, batch: Batch) -> Batch:
    """The batch as an engine near the learner would have sampled it: off by 0.3 nats, up and down."""
    from dataclasses import replace

    async def moved(scored: Scored, sign: float) -> Scored:
        t = scored.trajectory
        prompt, count = t.request.prompt.token_ids, len(t.token_ids)
        logprobs = (await learner.logprobs((*prompt, *t.token_ids)))[len(prompt) - 1 :]
        engine = tuple(value + sign * 0.3 * (-1) ** (i % 3) for i, value in enumerate(logprobs))
        half = (count + 1) // 2
        spans = (VersionSpan(batch.version - 1, 0, half), VersionSpan(batch.version, half, count))
        return replace(scored, trajectory=replace(t, logprobs=engine, spans=spans))

    groups = [
        replace(g, samples=tuple([await moved(s, 1.0 if i % 2 else -1.0) for i, s in enumerate(g.samples)]))
        for g in batch.groups
    ]
    return replace(batch, groups=tuple(groups))


def distance(one, other) -> float:
    return sum((one[name] - other[name]).pow(2).sum().item() for name in one) ** 0.5


def read_tensors(info) -> dict:
    with open(info["path"], "rb") as file:
        data = bytearray(file.read())
    found = {}
    for name, dtype, shape, offset in info["tensors"]:
        count = torch.Size(shape).numel()
        found[name] = (
            torch.frombuffer(data, dtype=getattr(torch, dtype), count=count, offset=offset).view(shape).clone()
        )
    return found


@pytest.mark.parametrize("dtype", [wide("float32"), "bfloat16"])
def test_a_restored_learner_goes_on_as_if_it_had_never_stopped(policy, tmp_path, dtype):
    """With everything that keeps a state: several updates a step, KL, entropy, a schedule."""
    cfg = config(dtype=dtype, updates_per_step=2, kl_coef=0.1, entropy_coef=0.01, schedule="linear", warmup_steps=3)

    async def whole(learner):
        first = await learner.step(make_batch(0))
        await learner.save(tmp_path / "state", kind="state")
        await learner.save(tmp_path / "state", kind="state")
        return first, await learner.step(make_batch(1)), await learner.logprobs(PROBE)

    async def resumed(learner):
        await learner.restore(tmp_path / "state")
        return await learner.step(make_batch(1)), await learner.logprobs(PROBE)

    first, second, logprobs = run(policy, tmp_path, cfg, whole)
    again, same = run(policy, tmp_path, cfg, resumed)
    assert same == pytest.approx(logprobs, abs=1e-6)
    assert again.version == second.version == 2
    for name in ("loss", "kl", "grad_norm", "lr", "entropy"):
        assert again.metrics[name] == pytest.approx(second.metrics[name], abs=1e-6), name
    assert first.metrics["lr"] == pytest.approx(1e-2 * 2 / 3)
    assert second.metrics["clip_fraction"] > 0
    assert not list(tmp_path.glob(".*"))


@pytest.mark.wide
def test_steps_too_small_for_bfloat16_weights_add_up_in_float32(policy, tmp_path):
    cfg = config(dtype="bfloat16", lr=1e-5, weight_decay=0.0)

    async def use(learner):
        before = await learner.logprobs(PROBE)
        for version in range(40):
            report = await learner.step(again(version))
        assert report.metrics["tokens_padded_share"] == 0.0  # prompts are shared, in spite of rounding
        return before, await learner.logprobs(PROBE)

    def again(version):
        return Batch(version + 1, version, tuple(at_version(g, version) for g in make_batch(0).groups))

    before, after = run(policy, tmp_path, cfg, use)
    assert max(abs(a - b) for a, b in zip(after, before, strict=True)) > 0.01


def at_version(group: Group, version: int) -> Group:
    from dataclasses import replace

    def moved(scored: Scored) -> Scored:
        t = scored.trajectory
        return replace(scored, trajectory=replace(t, spans=(VersionSpan(version, 0, len(t.token_ids)),)))

    return replace(group, samples=tuple(map(moved, group.samples)))


def test_a_killed_rank_is_named_ends_the_others_and_leaves_nothing(policy, tmp_path):
    async def use(learner):
        watcher = asyncio.create_task(learner.wait_dead())
        _, second = learner.pids()
        stepping = asyncio.create_task(learner.step(make_batch(0)))
        os.kill(second, signal.SIGKILL)
        async with asyncio.timeout(180):
            with pytest.raises(LearnerError, match=rf"rank 1 \(pid {second}\) was killed by SIGKILL"):
                await stepping
            with pytest.raises(LearnerError, match="SIGKILL"):
                await watcher
            with pytest.raises(LearnerError, match="SIGKILL"):
                await learner.logprobs(PROBE)

    run(policy, tmp_path, config(ranks=2), use)


def test_a_rank_that_raises_says_why(policy, tmp_path):
    async def broken(learner):
        with pytest.raises(LearnerError, match="the loss of rank 0 is nan"):
            await learner.step(make_batch(0, advantage=float("nan")))

    run(policy, tmp_path, config(), broken)


@pytest.mark.parametrize(("ranks", "zero_stage"), [wide(1, 2), (2, 3)])
def test_a_file_that_cannot_be_written_ends_no_rank(policy, tmp_path, ranks, zero_stage):
    async def use(learner):
        (tmp_path / "file").touch()
        for kind in ("policy", "state"):
            with pytest.raises(RunDirError, match="cannot be written"):
                await learner.save(tmp_path / "file" / kind, kind=kind)
        report = await learner.step(make_batch(0))
        assert await learner.save(tmp_path / "policy", kind="policy") == 1
        return report

    assert run(policy, tmp_path, config(ranks=ranks, zero_stage=zero_stage), use).version == 1


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


@pytest.mark.wide
def test_a_policy_that_cannot_be_loaded_ends_the_start_with_its_reason(tmp_path):
    async def main():
        learner = ProcessLearner(config(), tmp_path / "nowhere", tmp_path, total_updates=1)
        try:
            with pytest.raises(ConfigError, match="nowhere"):
                await learner.start()
        finally:
            await learner.close()
        assert learner.pids() == ()

    asyncio.run(main())


@pytest.mark.wide
def test_close_does_not_wait_for_a_step(policy, tmp_path):
    async def use(learner):
        pending = asyncio.create_task(learner.step(make_batch(0)))
        await asyncio.sleep(0)
        await learner.close()
        with pytest.raises(LearnerError):
            await pending

    run(policy, tmp_path, config(), use)


@pytest.mark.wide
def test_ranks_die_with_a_killed_driver(policy, tmp_path):
    script = textwrap.dedent(f"""
        import asyncio, sys, time
        from pathlib import Path
        from overlap.config import Config, LearnConfig, RunConfig
        from overlap.learner import ProcessLearner

        async def main():
            cfg = Config(learn=LearnConfig(ranks=2), run=RunConfig(device="cpu"))
            learner = ProcessLearner(cfg, Path({str(policy)!r}), Path({str(tmp_path)!r}), total_updates=1)
            await learner.start()
            print(*learner.pids(), flush=True)
            await learner.wait_dead()

        asyncio.run(main())
    """)
    driver = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        ranks = [identify(int(pid)) for pid in driver.stdout.readline().split()]
    finally:
        driver.kill()
        driver.communicate(timeout=20)
    assert len(ranks) == 2
    await_all(ranks)


def await_all(ranks: list[Pid]) -> None:
    from overlap.process.process_tree import await_end

    assert not await_end(ranks, 180.0)
