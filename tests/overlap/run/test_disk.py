"""What a run writes, and what is refused because it cannot fit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from overlap.config.load import load_config
from overlap.core.errors import ConfigError
from overlap.core.kept_groups import KEPT_BYTES
from overlap.placement.activations import DecoderShape
from overlap.placement.planned_run import PlannedRun
from overlap.placement.shapes import ModelShape
from overlap.run.disk import DiskNeed, disk_need

GIB = 2**30
DECODER = DecoderShape(layers=30, hidden=576, inner=1536, queries=576, keys=192)
SMOLLM2 = ModelShape(134_500_000, DECODER, 49152, 49152 * 576, tied=True)
WEIGHTS = 2 * SMOLLM2.parameters


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The plan of a run in a folder whose disk has ``free`` bytes."""

    def plan(settings: str = "", free: float = 100 * GIB) -> DiskNeed:
        monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=int(free)))
        cfg = load_config(None, [f"run.dir={tmp_path / 'runs' / 'a'}", *settings.split()])
        critic = SMOLLM2 if cfg.learn.advantage == "gae" else None
        return disk_need(PlannedRun(cfg, SMOLLM2, critic), heldout=3)

    return plan


@pytest.mark.parametrize(
    ("settings", "certain"),
    [
        ("", {"policy": WEIGHTS}),
        ("run.eval_every=5", {"3 policies": 3 * WEIGHTS}),
        ("run.save_every=5", {"policy": WEIGHTS, "3 checkpoints": 3 * 7 * WEIGHTS}),
        ("run.save_every=5 run.steps=9", {"policy": WEIGHTS, "1 checkpoint": 7 * WEIGHTS}),
        (
            "run.save_every=5 run.keep_last=1 run.eval_every=5",
            {"3 policies": 3 * WEIGHTS, "3 checkpoints": 3 * 7 * WEIGHTS},
        ),
        ("run.save_every=5 model.dtype=float32", {"policy": 2 * WEIGHTS, "3 checkpoints": 3 * 8 * WEIGHTS}),
        (
            "run.save_every=5 learn.advantage=gae",
            {"policy": WEIGHTS, "3 checkpoints": 3 * 14 * (SMOLLM2.parameters + SMOLLM2.trunk)},
        ),
    ],
)
def test_policies_and_checkpoints_are_counted_at_their_peak(settings: str, certain: dict[str, int], planned) -> None:
    assert planned(settings).certain == certain


def test_adapters_make_small_checkpoints(planned) -> None:
    assert planned("run.save_every=5 learn.lora_rank=8").certain["3 checkpoints"] < 3 * WEIGHTS / 4


def test_the_line_says_what_is_needed_and_what_is_free(planned, tmp_path: Path) -> None:
    line = planned("run.save_every=5").line
    assert line == f"{tmp_path} needs 5.5 GiB (at worst 5.6), 100.0 free (policy, 3 checkpoints, samples)"


@pytest.mark.promise("by-products")
def test_what_cannot_fit_is_refused_and_what_might_not_is_told(planned) -> None:
    with pytest.raises(ConfigError, match=r"needs 0\.3 GiB, 0\.1 free \(policy\): use another disk$"):
        planned("", free=GIB / 8).check("runs/a")
    with pytest.raises(ConfigError, match=r"needs 5\.5 GiB, 5\.0 free \(policy, 3 checkpoints\): use fewer"):
        planned("run.save_every=5", free=5 * GIB).check("runs/a")
    tight = planned("run.samples=all run.steps=100000", free=GIB)
    tight.check("runs/a")
    assert tight.line.endswith("the samples may not fit: use fewer run.steps")


def test_the_samples_that_are_kept_are_counted_by_what_is_kept(planned) -> None:
    large = "rollout.groups_per_step=64 rollout.samples_per_group=16 model.response_tokens=4096"
    settings = f"run.steps=1000 learn.micro_batch_tokens=8192 {large}"
    found = {
        kept: planned(f"{settings} run.samples={kept}").at_most.get("samples", 0) for kept in ("none", "some", "all")
    }
    assert found["none"] == 0
    assert found["some"] == 1000 * KEPT_BYTES < found["all"] / 20
    some, every = (planned(f"run.samples={kept}").at_most["samples"] for kept in ("some", "all"))
    assert some == every  # all groups fit


def test_what_a_resumed_run_has_there_counts_as_free(planned, tmp_path: Path) -> None:
    (folder := tmp_path / "runs" / "a" / "checkpoints" / "step-000001").mkdir(parents=True)
    (folder / "state").write_bytes(b"x" * 5000)
    assert planned(free=1000).free == 6000
