"""The policy that a KL penalty is held against, where it is another one than the policy without its adapters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from overlap.config.fields import Config
from overlap.core.errors import blaming
from overlap.learner.backend import TrainBackend
from overlap.learner.model import Policy, choose_kernels, load_policy
from overlap.learner.sequence import SequenceGroup
from overlap.learner.tensors import MicroTensors
from overlap.weights.full import whole_shape


class ReferencePolicy:
    """A frozen policy of any size, with the tokenizer of the one that is trained. ``packs``: its attention knows packed
    rows. Raises ConfigError for a checkpoint that cannot be read.
    """

    def __init__(self, cfg: Config, path: Path, device: torch.device, backend: TrainBackend) -> None:
        dtype, temperature = getattr(torch, cfg.dtype), cfg.rollout.temperature
        with blaming("learn.reference" if cfg.learn.reference else "model.policy"):
            self._policy: Policy = load_policy(
                path, dtype=dtype, temperature=temperature, device=device, backend=backend
            ).requires_grad_(False)
            self.packs, _ = choose_kernels(self._policy, cfg.learn, device, backend)
        self._known, _ = whole_shape(self._policy.head.weight)
        self.module: Any = None

    def freeze(self, backend: TrainBackend, sequence: SequenceGroup | None) -> None:
        """Make it ready for forward passes, with the ranks that share a sequence."""
        self._policy.sequence = sequence
        self.module = backend.freeze(self._policy)

    @torch.no_grad()
    def __call__(self, micro: MicroTensors) -> Tensor:
        """Log-probs [T] of ``micro.targets``. A smaller policy may lack the padding behind the tokens, which a larger
        one of the family has: such a token is taken for the last one that it has.
        """
        most = self._known - 1
        known = replace(micro, ids=micro.ids.clamp(max=most), targets=micro.targets.clamp(max=most))
        logprobs: Tensor = self.module(known)[0]
        return logprobs
