"""The critic: the reward of a response, as predicted at each of its tokens.

The value of a token is read where the policy predicts it, at the token before: it knows what led there, and not the
token itself. Packing and places are the policy's (``MicroTensors``), so both see the same micro-batches.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from overlap.config.learn import LearnConfig
from overlap.core.errors import blaming
from overlap.learner.backend import TrainBackend
from overlap.learner.model import checkpoint_layers, choose_kernels, hidden_states, load_policy
from overlap.learner.tensors import MicroTensors


class Trunk(nn.Module):
    """A language model without its output layer (``base``): the hidden states that values are read from."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base = base

    def forward(self, micro: MicroTensors) -> Tensor:
        """Hidden states [T + C, h]: of the T counted tokens, then behind the C responses that bootstrap."""
        known = self.base.get_input_embeddings().num_embeddings  # a smaller model may lack the policy's padding
        places = torch.cat((micro.at, micro.behind[micro.behind >= 0]))
        return hidden_states(self.base, replace(micro, ids=micro.ids.clamp(max=known - 1)), places)


class ValueHead(nn.Module):
    """Hidden states [N, h] to values [N], in float32, without a bias. Weights start at zero, and so do values.

    No backend trains it: that would make its weights those of the model's number type.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1, bias=False, dtype=torch.float32)
        nn.init.zeros_(self.linear.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        values: Tensor = self.linear(hidden.float())[:, 0]
        return values


def read_values(trunk: Any, head: ValueHead, micro: MicroTensors) -> tuple[Tensor, Tensor]:
    """Values [T] of the states before the counted tokens, and [R] behind the responses: 0 where one ended. The latter
    carry no gradient: what they should be is not known.
    """
    values = head(trunk(micro))
    count, cut = len(micro.at), micro.behind >= 0
    behind = torch.zeros(len(cut), device=values.device)
    behind[cut] = values[count:].detach()
    return values[:count], behind


def load_trunk(
    path: Path, learn: LearnConfig, *, dtype: torch.dtype, device: torch.device, backend: TrainBackend
) -> tuple[Trunk, bool]:
    """A checkpoint's trunk as ``backend`` needs it, and whether its attention knows packed rows. Raises ConfigError."""
    with blaming("critic.policy"):
        model = load_policy(path, dtype=dtype, temperature=1.0, device=device, backend=backend)
        packs, _ = choose_kernels(model, learn, device, backend)
        checkpoint_layers(model, learn)
    return Trunk(model.policy.base_model), packs
