"""What a rank computes in a step, by plain torch."""

from __future__ import annotations

import math

import pytest
from plain_backend import plain_trainer
from responses import some_groups

from overlap.config.fields import Config
from overlap.config.learn import LearnConfig
from overlap.core.errors import LearnerError
from overlap.learner.losses import LOSSES
from overlap.learner.micro_batch import mini_batches


@pytest.mark.parametrize(
    ("learn", "passes"),
    [
        *[({"loss": name, "updates_per_step": 3}, 2) for name in LOSSES if name != "pg"],
        ({"correction": "decoupled", "updates_per_step": 3}, 2),
        ({"loss": "pg", "updates_per_step": 3}, 0),
        ({"loss": "pg", "correction": "dppo", "updates_per_step": 3}, 0),
        ({"correction": "decoupled"}, 0),
    ],
)
def test_all_updates_but_the_first_have_the_log_probs_before_the_step_where_a_clip_needs_them(
    tiny, monkeypatch, learn, passes
):
    groups = some_groups(groups=3)
    trainer = plain_trainer(monkeypatch, Config(learn=LearnConfig(**learn)), tiny, total_updates=1)
    calls = []
    trainer.model.module.register_forward_hook(lambda *_: calls.append(1))
    minis = mini_batches(groups, trainer._split)
    found = trainer._before(minis)
    assert [olds is not None for olds in found] == [number > 0 and passes > 0 for number in range(len(minis))]
    assert [len(olds[0]) for olds in found if olds] == [mini.counted for mini in minis[1:]][:passes]
    assert len(calls) == passes


def test_a_loss_that_is_no_number_says_what_to_lower(tiny, monkeypatch):
    trainer = plain_trainer(monkeypatch, Config(), tiny, total_updates=1)
    with pytest.raises(LearnerError, match=r"the loss of rank 0 is nan: lower learn\.lr or learn\.grad_clip"):
        trainer.step(some_groups(advantages=(math.nan,)))
