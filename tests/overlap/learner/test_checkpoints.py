"""Checkpoints that transformers would load as another model than they are."""

from __future__ import annotations

import shutil

import pytest

from overlap.errors import ConfigError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from overlap.learner.model import load_policy  # noqa: E402
from overlap.policy import make_tiny_policy  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny_policy(tmp_path_factory.mktemp("tiny"))


def edited(tiny, folder, **changes):
    """The tiny policy with these tensors in its file."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(tiny, folder)
    tensors = load_file(folder / "model.safetensors") | changes
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return load_policy(folder, dtype=torch.float32, temperature=1.0, device=CPU)


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        (
            "model.layers.0.self_attn.q_proj.bias",
            [128],
            "1 tensors of its files belong to no layer, such as .*q_proj.bias",
        ),
        (
            "model.layers.2.mlp.up_proj.weight",
            [128, 64],
            "1 tensors of its files belong to no layer, such as .*layers.2.mlp",
        ),
        ("model.norm.weight", [63], "tensors of other sizes than its config.json means"),
        (
            "lm_head.weight",
            [259, 64],
            "an output layer that differs from its embedding, but its config.json ties the two",
        ),
    ],
)
def test_a_checkpoint_that_would_become_another_model_is_refused(tiny, tmp_path, name, shape, says):
    with pytest.raises(ConfigError, match=says):
        edited(tiny, tmp_path / "other", **{name: torch.ones(shape)})


def test_what_every_model_makes_anew_may_stand_in_a_checkpoint(tiny, tmp_path):
    edited(tiny, tmp_path / "old", **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(16)})
