"""What a run writes, and what is refused because it cannot fit."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from overlap.config.load import load_config
from overlap.core import KEPT_BYTES
from overlap.errors import ConfigError
from overlap.placement.activations import DecoderShape
from overlap.placement.planned_run import PlannedRun
from overlap.placement.shapes import ModelShape
from overlap.prepare.disk import DiskPlan, disk_plan

GIB = 2**30
DECODER = DecoderShape(layers=30, hidden=576, inner=1536, queries=576, keys=192)
SMOLLM2 = ModelShape(134_500_000, DECODER, 49152, 49152 * 576, tied=True)
WEIGHTS = 2 * SMOLLM2.parameters


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The plan of a run in a folder whose disk has ``free`` bytes."""

    def plan(settings: str = "", free: float = 100 * GIB) -> DiskPlan:
        monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=int(free)))
        cfg = load_config(None, [f"run.dir={tmp_path / 'runs' / 'a'}", *settings.split()])
        critic = SMOLLM2 if cfg.learn.advantage == "gae" else None
        return disk_plan(PlannedRun(cfg, SMOLLM2, critic), heldout=3)

    return plan


@pytest.mark.parametrize(
    ("settings", "policies", "checkpoints", "checkpoint"),
    [
        ("", 1, 0, 0),
        ("run.eval_every=5", 3, 0, 0),
        ("run.save_every=5", 1, 3, 14 * SMOLLM2.parameters),
        ("run.save_every=5 run.steps=9", 1, 1, 14 * SMOLLM2.parameters),
        ("run.save_every=5 run.keep_last=1 run.eval_every=5", 3, 3, 14 * SMOLLM2.parameters),
        ("run.save_every=5 model.dtype=float32", 1, 3, 16 * SMOLLM2.parameters),
        ("run.save_every=5 learn.advantage=gae", 1, 3, 14 * (SMOLLM2.parameters + SMOLLM2.trunk)),
    ],
)
def test_policies_and_checkpoints_are_counted_at_their_peak(
    settings: str, policies: int, checkpoints: int, checkpoint: int, planned
) -> None:
    found = planned(settings)
    assert (found.policies, found.checkpoints, found.checkpoint) == (policies, checkpoints, checkpoint)
    assert found.policy == WEIGHTS * (2 if "float32" in settings else 1)


def test_adapters_make_small_checkpoints(planned) -> None:
    assert planned("run.save_every=5 learn.lora_rank=8 learn.lr=1e-4").checkpoint < WEIGHTS / 4


def test_the_line_says_what_is_needed_and_what_is_free(planned, tmp_path: Path) -> None:
    line = planned("run.save_every=5").line
    assert line.startswith(f"up to 5.6 of 100.0 GiB free in {tmp_path} (policy 0.3 GiB, 3 checkpoints of 1.8 GiB, samp")
    assert re.search(r", samples up to [\d.]+ MiB\)", line), line


@pytest.mark.promise("by-products")
def test_what_cannot_fit_is_refused_and_what_might_not_is_told(planned) -> None:
    with pytest.raises(
        ConfigError, match=r"policy takes 0\.3 GiB and .* has 0\.1.* free: free some, or use another disk$"
    ):
        planned("", free=GIB / 8).check("runs/a")
    with pytest.raises(ConfigError, match=r"policy and checkpoints take 5\.5 GiB .*fewer checkpoints \(run.keep_last"):
        planned("run.save_every=5", free=5 * GIB).check("runs/a")
    tight = planned("run.samples=all run.steps=100000", free=GIB)
    tight.check("runs/a")
    assert tight.line.endswith("the samples may not fit: use fewer run.steps")


def test_the_samples_that_are_kept_are_counted_by_what_is_kept(planned) -> None:
    large = "rollout.groups_per_step=64 rollout.samples_per_group=16 model.response_tokens=4096"
    settings = f"run.steps=1000 learn.micro_batch_tokens=8192 {large}"
    found = {kept: planned(f"{settings} run.samples={kept}").samples for kept in ("none", "some", "all")}
    assert found["none"] == 0
    assert found["some"] == 1000 * KEPT_BYTES < found["all"] / 20
    assert planned("run.samples=some").samples == planned("run.samples=all").samples  # all groups fit


def test_what_a_resumed_run_has_there_counts_as_free(planned, tmp_path: Path) -> None:
    (folder := tmp_path / "runs" / "a" / "checkpoints" / "step-000001").mkdir(parents=True)
    (folder / "state").write_bytes(b"x" * 5000)
    assert planned(free=1000).free == 6000
