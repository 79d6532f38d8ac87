"""The memory plan against the resident bytes of real ranks.

Compared are a rank's bytes at rest after a step, and the most that it has in the phases of the next one, both without
what the process had before it made its trainer (``rank_memory``), with the sum of the plan's items, the process's own
left out.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_memory import measure
from tiny_policy import make_tiny_policy
from wide import wide

from overlap.config.load import load_config
from overlap.placement.devices import bfloat16_is_fast
from overlap.placement.memory import CRITIC, LEARNING, SAMPLING, rank_items
from overlap.placement.planned_run import PlannedRun
from overlap.placement.shapes import read_shape

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

OWN = "bfloat16" if bfloat16_is_fast() else "float32"
"""What this processor computes in; the other type takes it fifty times as long."""
SETTINGS = [
    "run.device=cpu",
    f"model.dtype={OWN}",
    "model.prompt_tokens=64",
    "model.response_tokens=256",
    "learn.micro_batch_tokens=2048",
]


@pytest.fixture(scope="module")
def policies(tmp_path_factory) -> tuple[Path, Path, Path]:
    """One of 62 M parameters, one of a layer like its layers, and a tiny one."""
    sizes = {"hidden": 1024, "vocab": 8192}
    root = tmp_path_factory.mktemp("policies")
    one, layer = (make_tiny_policy(root / f"{layers}", layers=layers, **sizes) for layers in (8, 1))
    return one, layer, make_tiny_policy(root / "tiny", vocab=2048)


@pytest.mark.promise("memory-plan")
@pytest.mark.wide
@pytest.mark.parametrize(
    "settings",
    [
        wide(["learn.ranks=2", "learn.zero_stage=1"]),
        wide(["learn.ranks=2", "learn.zero_stage=2"]),
        wide(["learn.ranks=2", "learn.zero_stage=2", "learn.recompute=always"]),
        wide(["learn.ranks=2", "learn.zero_stage=3"]),
        ["learn.ranks=1", "learn.zero_stage=3", "learn.advantage=gae", "learn.recompute=always"],
        wide(["learn.ranks=1", "learn.zero_stage=1", "model.dtype=float32"]),
    ],
    ids=lambda settings: "-".join(setting.partition("=")[2] for setting in settings),
)
def test_the_plan_is_within_a_tenth_of_what_ranks_hold(policies, tmp_path: Path, settings: list[str]):
    policy = policies[0]
    cfg, shape = load_config(None, [*SETTINGS, *settings]), read_shape(policy)
    asked = PlannedRun(cfg, shape, shape if cfg.learn.advantage == "gae" else None, engine=False)
    moments = {"rest": SAMPLING, "actor": LEARNING} | ({"critic": CRITIC} if asked.critic else {})
    for rank, found in enumerate(measure([*SETTINGS, *settings], *policies, tmp_path)):
        planned = {name: sum(rank_items(asked, moment)[0].values()) for name, moment in moments.items()}
        measured = {name: found[name] for name in moments}
        print(settings, rank, {name: round(planned[name] / measured[name], 3) for name in moments}, found)
        assert planned == pytest.approx(measured, rel=0.1)
