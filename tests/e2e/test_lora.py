"""Adapters with the real learner and the real engine: any ranks and stages take the steps of plain torch, a state comes
back, and what is served and saved is what was trained.
"""

from __future__ import annotations

from pathlib import Path

import peft
import pytest
import torch
import transformers
from learners import PROBE, adapted, distance, make_batch, run, sent
from plain_backend import plain_trainer
from wide import wide

from overlap.config.fields import Config
from overlap.learner.micro_batch import flatten
from overlap.learner.saved_state import export_policy
from overlap.weights.full import ADAPTER_SCALE, LowRank

DOWN, UP = ".lora_A.weight", ".lora_B.weight"
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def tensors(folder: Path, dtype=torch.float32):
    return dict(transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).named_parameters())


def with_adapter(base: Path, adapter: Path):
    """As peft loads and merges it."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return peft.PeftModel.from_pretrained(model, adapter)


@pytest.mark.promise("lora")
@pytest.mark.parametrize(
    ("ranks", "zero_stage", "more"),
    [
        wide(1, 1, {}),
        wide(1, 2, {"recompute": "always"}),
        wide(1, 3, {}),
        wide(2, 1, {}),
        wide(2, 2, {"sequence_parallel": 2}),
        (2, 3, {"recompute": "always"}),
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
        assert sum(tensor.nbytes for tensor in served.values()) == reports[-1]["sync/bytes"]
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
    assert [report["sync/applied_share"] for report in reports] == pytest.approx([1.0] * 3, abs=1e-3)
    base, by_torch = tensors(policy), dict(expected.full_tensors())
    served = merged(base, served)
    assert served.keys() == base.keys()
    gone = distance(by_torch, base)
    assert gone > 0.1
    assert distance(served, by_torch) < 1e-2 * gone
    for name in base.keys() - expected.adapters.keys():
        assert torch.equal(served[name], base[name]), name
    monkeypatch.undo()
    check_saved(policy, tmp_path, cfg, served)


def merged(base, adapter):
    """The weights that an engine computes with, which has ``base`` and is sent an adapter."""
    made, prefix = dict(base), "base_model.model."
    for name in adapter:
        if name.endswith(DOWN):
            stem = name.removesuffix(DOWN)
            weight = f"{stem.removeprefix(prefix)}.weight"
            made[weight] = LowRank(adapter[name], adapter[stem + UP], ADAPTER_SCALE).added_to(base[weight])
    assert len(adapter) == 2 * 14
    return made


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
