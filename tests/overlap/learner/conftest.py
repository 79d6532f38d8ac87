"""A policy to read and train in the test's process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plain_backend import plain_trainer

from overlap.config.fields import Config, ModelConfig
from overlap.config.learn import CriticConfig, LearnConfig


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float], None]:
    """Gives a correction another bound than the published one."""

    def give(name: str, bound: float) -> None:
        from overlap.learner.correction import CORRECTIONS, CorrectionEntry

        entry = CorrectionEntry(CORRECTIONS[name].function, bound)
        monkeypatch.setattr("overlap.learner.losses.correction", lambda asked: entry)

    return give


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_policy import make_tiny_policy

    return make_tiny_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture
def trainer(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes the trainer of an only rank, by plain torch; of the same arguments equal ones."""

    def make(
        policy: Path = tiny, *, dtype: Any = "float32", critic: Any = None, reference: Any = None, **learn: Any
    ) -> Any:
        import torch

        torch.manual_seed(0)
        given = {"lr": 1e-3, "grad_clip": 1e6, "micro_batch_tokens": 4096} | learn
        cfg = Config(
            model=ModelConfig(dtype=dtype, prompt_tokens=32, response_tokens=32),
            learn=LearnConfig(**(given | ({"reference": str(reference)} if reference else {}))),
            critic=CriticConfig(**(critic or {})),
        )
        return plain_trainer(monkeypatch, cfg, policy, 100, reference)

    return make
