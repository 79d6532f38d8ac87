"""What a run sizes by cores follows what its process may use, not what its host has."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from overlap.config.fields import Config, VerifyConfig
from overlap.config.rollout import RolloutConfig
from overlap.core.errors import ConfigError
from overlap.learner import rank
from overlap.learner.processes import rank_environment
from overlap.placement.devices import devices_here
from overlap.placement.seats import place
from overlap.record.report import hardware
from recipes.code_rl.evaluate import fitting_here


@pytest.fixture(params=["affinity", "quota"])
def four_cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A host of 16 cores of which this process may use four; returns why."""
    held = request.param == "affinity"
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4 if held else 16)))
    monkeypatch.setattr("sandbox.pool.quotas._quotas", lambda groups, own: iter([] if held else [4]))
    monkeypatch.setattr("overlap.placement.devices.physical_cores", tuple)
    return str(request.param)


def test_all_that_is_sized_by_cores_follows_affinity_and_quota(four_cores: str) -> None:
    assert VerifyConfig(workers=4).workers == 4
    with pytest.raises(ConfigError, match=r"the 4 cores that .*use 4 or less"):
        VerifyConfig(workers=5)
    assert fitting_here()["verify.workers"] == 2
    assert rank_environment(0, 2)["OMP_NUM_THREADS"] == "2"
    assert rank._threads(SimpleNamespace(beside=1)) == 4  # type: ignore[arg-type]
    assert hardware()["cores"] == 4
    here = devices_here("cpu", {})
    assert here.cores == (0, 1, 2, 3)
    beside = Config(rollout=RolloutConfig(max_staleness=1))
    bound = place(beside, here).engines[0].environment
    assert bound == ({"VLLM_CPU_OMP_THREADS_BIND": "0,1,2"} if four_cores == "quota" else {})
