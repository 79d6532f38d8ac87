"""Which checkpoints can be the reference policy of a run: those of any size that read the policy's tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_parts import fake_prompts
from tiny_policy import make_tiny_policy

from overlap.config.load import load_config
from overlap.core.errors import ConfigError
from overlap.run.plan import memory_inputs
from overlap.run.run_inputs import prepare
from overlap.task import Task


class TrainOnly(Task):
    def prompts(self, tokenizer, split):
        return fake_prompts(8) if split == "train" else []

    def reward(self, prompt, answer, judgement):
        return 1.0


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints: a policy, a larger one of its family, and one with more tokens."""
    folder = tmp_path_factory.mktemp("policies")
    for name, sizes in {"policy": {}, "large": {"hidden": 96}, "other": {"vocab": 300}}.items():
        make_tiny_policy(folder / name, layers=1, **sizes)
    make_tiny_policy(folder / "run" / "policy", layers=1)
    return folder


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("policy", ""),
        ("large", ""),
        ("other", r"^learn\.reference='.*other': its tokenizer is not that of model\.policy=.*: use a checkpoint"),
        ("missing", r"^learn\.reference='.*missing': no such directory: give"),
        ("run", r"^learn\.reference='.*/run': .*/run is the directory of a run: give .*/run/policy$"),
        (
            "later/policy",
            r"': no such directory: a run with run\.dir=.*/later leaves it there at its end; train that f",
        ),
    ],
)
def test_a_reference_policy_may_have_another_size_and_no_other_tokens(
    policies: Path, tmp_path: Path, name: str, message: str
) -> None:
    named, given = [f"model.policy={policies / 'policy'}", "learn.kl_coef=0.1"], policies / name
    assert prepare(load_config(None, named), TrainOnly(), tmp_path).reference is None
    cfg = load_config(None, [*named, f"learn.reference={given}"])
    if not message:
        inputs = prepare(cfg, TrainOnly(), tmp_path)
        assert inputs.reference == given
        assert (shape := memory_inputs(inputs).reference) is not None
        assert shape.decoder.hidden == (96 if name == "large" else 64)
        return
    with pytest.raises(ConfigError, match=message):
        prepare(cfg, TrainOnly(), tmp_path)
