"""Adapters with the real learner and the real engine: any ranks and stages take the steps of plain torch, a state comes
back, and what is served and saved is what was trained.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from learners import PROBE, config, make_batch, run
from wide import wide

from overlap.config import Config
from overlap.core import Prompt, Request
from overlap.errors import ConfigError
from overlap.learner import export_policy, read_state
from overlap.learner.micro_batch import flatten

torch = pytest.importorskip("torch")
pytest.importorskip("deepspeed")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

from plain_backend import plain_trainer  # noqa: E402

from overlap.policy import make_tiny_policy  # noqa: E402

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

RANK = 4


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    return make_tiny_policy(tmp_path_factory.mktemp("tiny"), vocab=2048)  # large enough for ZeRO-3 to shard


def adapted(**learn) -> Config:
    return config(**({"lora_rank": RANK, "kl_coef": 0.1} | learn))


def tensors(folder: Path, dtype=torch.float32):
    return dict(transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).named_parameters())


def with_adapter(base: Path, adapter: Path, dtype=torch.float32):
    """As peft loads and merges it."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    return peft.PeftModel.from_pretrained(model, adapter)


def sent(info) -> dict:
    """What the engine would read."""
    data = bytearray(Path(info["path"]).read_bytes())
    found = {}
    for name, dtype, shape, offset in info["tensors"]:
        count = torch.Size(shape).numel()
        found[name] = torch.frombuffer(data, dtype=getattr(torch, dtype), count=count, offset=offset).view(shape)
    return found


@pytest.mark.parametrize(
    ("ranks", "zero_stage", "more"),
    [
        wide(1, 1, {}),
        wide(1, 2, {"checkpointing": "always"}),
        wide(1, 3, {}),
        wide(2, 1, {}),
        wide(2, 2, {"sequence_parallel": 2}),
        (2, 3, {"checkpointing": "always"}),
        wide(2, 3, {"updates_per_step": 2}),
    ],
)
def test_every_stage_and_number_of_ranks_takes_the_steps_of_plain_torch(
    policy, tmp_path, monkeypatch, ranks, zero_stage, more
):
    cfg = adapted(ranks=ranks, zero_stage=zero_stage, **more)
    batches = [make_batch(version) for version in range(3)]

    async def use(learner):
        reports = [(await learner.step(batch)).metrics for batch in batches]
        update = await learner.publish(3)
        served = sent(update.info)
        await learner.retire(update)
        await learner.save(tmp_path / "policy", kind="policy")
        await learner.save(tmp_path / "state", kind="state")
        return reports, served, await learner.logprobs(PROBE)

    reports, served, logprobs = run(policy, tmp_path, cfg, use)
    torch.manual_seed(cfg.run.seed)
    plain_cfg = adapted(updates_per_step=cfg.learn.updates_per_step)
    expected = plain_trainer(monkeypatch, plain_cfg, policy, total_updates=10)
    for batch, found in zip(batches, reports, strict=True):
        told = expected.step(flatten(batch))
        assert {n: found[n] for n in ("loss", "kl", "grad_norm")} == pytest.approx(
            {n: told[n] for n in ("loss", "kl", "grad_norm")}, rel=1e-3, abs=1e-5
        )
    assert reports[-1]["kl"] > 1e-6
    assert logprobs == pytest.approx(expected.logprobs(PROBE), abs=2e-3)
    base, by_torch = tensors(policy), dict(expected.full_tensors())
    assert served.keys() == base.keys()
    gone = distance(by_torch, base)
    assert gone > 0.1
    assert distance(served, by_torch) < 1e-2 * gone
    for name in base.keys() - expected.adapters.keys():
        assert torch.equal(served[name], base[name]), name
    monkeypatch.undo()
    check_saved(policy, tmp_path, cfg, served)


def check_saved(policy: Path, folder: Path, cfg: Config, served) -> None:
    """The saved policy, and the one exported of the state, are what was served; peft makes it of their adapters."""
    assert export_policy(folder / "state", cfg, policy, folder / "export") == 3
    for made in (folder / "policy", folder / "export"):
        for name, tensor in tensors(made).items():
            assert torch.equal(tensor, served[name]), name
        assert transformers.AutoTokenizer.from_pretrained(made)("a").input_ids
        merged = dict(with_adapter(policy, made / "adapter").merge_and_unload().named_parameters())
        assert all(torch.allclose(merged[name], served[name], atol=1e-6) for name in merged)
    assert files(folder / "export") == files(folder / "policy")
    saved = sum(file.stat().st_size for file in (folder / "state").rglob("*.pt"))
    assert saved < (policy / "model.safetensors").stat().st_size  # no weights, and three numbers for each adapter's


def files(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*")}


def distance(one, other) -> float:
    return sum((one[name] - other[name]).pow(2).sum().item() for name in one) ** 0.5


@pytest.mark.wide
@pytest.mark.parametrize(
    ("wrote", "goes_on", "dtype"),
    [
        wide((1, 2), (1, 2), "float32"),
        wide((1, 2), (1, 2), "bfloat16"),
        wide((2, 3), (2, 3), "float32"),
        ((2, 1), (1, 2), "float32"),
        wide((2, 3), (1, 3), "float32"),
        wide((1, 3), (2, 3), "float32"),
        wide((2, 2), (2, 3), "bfloat16"),
        wide((2, 1), (1, 2), "bfloat16"),
    ],
)
def test_a_restored_learner_goes_on_with_its_adapters(policy, tmp_path, wrote, goes_on, dtype):
    def of(cut) -> Config:
        return adapted(ranks=cut[0], zero_stage=cut[1], dtype=dtype, schedule="linear")

    async def whole(learner):
        await learner.step(make_batch(0))
        await learner.step(make_batch(1))
        await learner.save(tmp_path / "state", kind="state")
        before = await learner.logprobs(PROBE)
        return before, (await learner.step(make_batch(2))).metrics, await learner.logprobs(PROBE)

    async def resumed(learner):
        await learner.restore(tmp_path / "state")
        before = await learner.logprobs(PROBE)
        return before, (await learner.step(make_batch(2))).metrics, await learner.logprobs(PROBE)

    before, metrics, after = run(policy, tmp_path, of(wrote), whole)
    same_before, same_metrics, same_after = run(policy, tmp_path, of(goes_on), resumed)
    exact = 1e-6 if wrote == goes_on else 1e-5 if dtype == "float32" else 0.05
    assert same_before == pytest.approx(before, abs=1e-6)
    assert same_after == pytest.approx(after, abs=max(exact, 1e-5))
    for name in ("loss", "kl", "grad_norm", "lr"):
        assert same_metrics[name] == pytest.approx(metrics[name], abs=exact, rel=exact), name
    assert read_state(tmp_path / "state", of(wrote)).lora_rank == RANK
    for other in (config(dtype=dtype), adapted(lora_rank=RANK + 1, dtype=dtype)):
        with pytest.raises(ConfigError, match=r"was written with learn\.lora_rank=4: resume with that"):
            read_state(tmp_path / "state", other)


@pytest.mark.wide
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_engine_serves_what_the_learner_has_trained(policy, tmp_path, dtype):
    """Its log-probs of what it samples are the learner's, as near as the parity check wants them."""
    from overlap.generate import EngineClient
    from overlap.pipeline.parity import check_parity

    cfg = adapted(dtype=dtype, ranks=2, zero_stage=3, lr=3e-3)
    prompt = PROBE[:20]

    async def use(learner):
        scratch = tmp_path / "engine"
        scratch.mkdir()
        generator = EngineClient(cfg, policy, scratch)
        gaps = []
        try:
            await generator.start()
            for version in range(3):
                if version:
                    await learner.step(make_batch(version - 1))
                update = await learner.publish(version)
                await generator.load(update)
                await learner.retire(update)
                sample = await generator.generate(Request(0, version, Prompt("p", prompt)))
                tokens = (*prompt, *sample.token_ids)
                engine, ours = await generator.logprobs(tokens), await learner.logprobs(tokens)
                bound = cfg.parity_bound
                gaps.append(check_parity(engine, ours, bound=bound, version=version, exact=dtype == "float32"))
            return gaps, ours, await learner.logprobs(PROBE)
        finally:
            await generator.close()

    gaps, _, _ = run(policy, tmp_path, cfg, use)
    assert len(gaps) == 3
