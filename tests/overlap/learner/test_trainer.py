"""What a rank computes, by plain torch."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from overlap.config import Config, LearnConfig  # noqa: E402
from overlap.learner.correction import CORRECTIONS  # noqa: E402
from overlap.learner.loss import LossConfig  # noqa: E402
from overlap.learner.losses import LOSSES  # noqa: E402
from overlap.learner.micro_batch import PromptGroup, Response, SplitConfig, mini_batches  # noqa: E402
from overlap.learner.trainer import RankTrainer  # noqa: E402


def trainer(**learn):
    """A rank with a policy that counts its forward passes."""
    made = object.__new__(RankTrainer)
    made.rank, made.device, made.passes, made.cfg = 0, torch.device("cpu"), 0, Config()
    made._loss = LossConfig(**learn)

    def forward(micro):
        made.passes += 1
        return torch.zeros(len(micro.targets)), None

    made.model = SimpleNamespace(module=forward)
    return made


def minis(updates):
    response = Response(array("i", [1, 2]), array("f", [-1.0, -1.0]), 1.0)
    groups = [PromptGroup(array("i", [3]), (response, response)) for _ in range(3)]
    return mini_batches(groups, SplitConfig(updates, 1, 64, 16))


@pytest.mark.parametrize("correction", [name for name in CORRECTIONS if name != "dppo"])
@pytest.mark.parametrize("kind", [name for name in LOSSES if name != "pg"])
def test_a_clip_has_the_log_probs_before_the_step_for_all_updates_but_the_first(correction, kind):
    made = trainer(correction=correction, loss=kind)
    before = made._before(minis(3))
    assert before[0] is None
    assert [len(olds[0]) for olds in before[1:]] == [4, 4]
    assert made.passes == 2


def test_one_update_needs_no_further_forward_pass():
    made = trainer(correction="decoupled")
    assert made._before(minis(1)) == [None]
    assert made.passes == 0


@pytest.mark.parametrize("correction", ["tis", "mis", "seq_mis", "dppo", "none"])
def test_without_a_clip_no_log_probs_are_computed_before_the_step(correction):
    made = trainer(correction=correction, loss="pg")
    assert made._before(minis(3)) == [None] * 3
    assert made.passes == 0


def test_the_loss_has_the_defaults_and_the_choices_of_the_configuration():
    cfg, default = Config(), LossConfig()
    assert {name: getattr(cfg.learn, name) for name in LossConfig.__dataclass_fields__} == {
        name: getattr(default, name) for name in LossConfig.__dataclass_fields__
    }
    for name in CORRECTIONS:
        LearnConfig(correction=name, loss="pg" if name == "dppo" else "ppo")
    for name in LOSSES:
        LearnConfig(loss=name)
