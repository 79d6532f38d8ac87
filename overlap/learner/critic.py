"""One rank's critic: the reward of a response, as predicted at each of its tokens, and what the policy is taught by it.

The value of a token is read where the policy predicts it, at the token before: it knows what led there, and not the
token itself. Packing and places are the policy's (``MicroTensors``), so both see the same micro-batches.

The critic learns before the policy does. All advantages of a batch come from the values before its first update: with
one update per batch these are those of the loss's own forward pass, with more the others need one beforehand.
Normalisation is that of ``overlap.learner.trainer``: the mean over all tokens of a mini-batch, on all ranks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from itertools import chain, compress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from overlap.config.fields import Config
from overlap.core.errors import LearnerError, blaming
from overlap.learner.gae import Credit, credit, explained_variance, whitened
from overlap.learner.micro_batch import MiniBatch
from overlap.learner.model import hidden_states, ready_policy
from overlap.learner.tensors import MicroTensors, to_tensors
from overlap.learner.zero.backend import ZeroBackend, learning_rate, take_step

HEAD = "head.pt"
Values = tuple[Tensor, Tensor]  # of the tokens, and behind the responses


class Trunk(nn.Module):
    """A language model without its output layer (``base``): the hidden states that values are read from."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base = base

    def forward(self, micro: MicroTensors) -> Tensor:
        """Hidden states [T + C, h]: of the T counted tokens, then behind the C responses that bootstrap."""
        known = self.base.get_input_embeddings().num_embeddings
        places = torch.cat((micro.at, micro.behind[micro.behind >= 0]))
        return hidden_states(self.base, micro.within(known), places)


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


class CriticTrainer:
    """Model, head and optimizers of one rank. ``model`` is the trunk as ``backend`` trains it; the head, a few thousand
    weights in float32, is whole on every rank, with gradients that are summed over them.
    """

    def __init__(self, cfg: Config, path: Path, device: torch.device, total_updates: int, backend: ZeroBackend) -> None:
        self.cfg, self.device, self.total_updates = cfg, device, total_updates
        self.updates = 0
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        with blaming("critic.policy"):
            ready = ready_policy(path, cfg, device, backend)
        trunk, self.packs = Trunk(ready.policy.policy.base_model), ready.packs
        width = trunk.base.config.get_text_config().hidden_size
        self.head = ValueHead(width).to(device)
        self._head_optimizer, optimizer = (
            torch.optim.AdamW(part.parameters(), lr=cfg.critic.lr, weight_decay=cfg.learn.weight_decay, fused=True)
            for part in (self.head, trunk)
        )
        self.model = backend.train(trunk, optimizer)

    def step(
        self, minis: Sequence[MiniBatch], costs: Sequence[list[Tensor] | None]
    ) -> tuple[list[list[Tensor]], dict[str, float]]:
        """Learn from a batch, an optimizer step for each mini-batch. ``costs`` [T] of its micro-batches on this rank
        are taken off the rewards. Returns the advantages [T] of each mini-batch's micro-batches on this rank, and
        metrics that are equal on all ranks.
        """
        began = time.monotonic()
        before: list[list[Values] | None] = [None, *[self._before(mini) for mini in minis[1:]]]
        made: list[list[Tensor]] = []
        sums, norms = torch.zeros(7, dtype=torch.float64), []
        for mini, known, taken in zip(minis, before, costs, strict=True):
            made.append(self._accumulate(mini, known, taken, sums))
            norms.append(self._optimize())
        if self.cfg.learn.normalizes:
            made = self._whitened(minis, made)
        tokens, targets, squares, errors, squared, values, losses = self._total(sums).tolist()
        return made, {
            "critic/loss": losses / tokens,
            "critic/explained_variance": explained_variance(tokens, targets, squares, errors, squared),
            "critic/value_mean": values / tokens,
            "critic/return_mean": targets / tokens,
            "critic/grad_norm": sum(norms) / len(norms),
            "critic/lr": self._rate(self.updates - 1),
            "critic/step_s": time.monotonic() - began,
        }

    @torch.no_grad()
    def _before(self, mini: MiniBatch) -> list[Values]:
        trunk = self.model.module
        return [read_values(trunk, self.head, to_tensors(m, self.device)) for m in mini.ranks[self.rank]]

    def _accumulate(
        self, mini: MiniBatch, before: list[Values] | None, costs: list[Tensor] | None, sums: Tensor
    ) -> list[Tensor]:
        micros = mini.ranks[self.rank]
        scale = self.world / mini.counted
        made = []
        for number, micro in enumerate(micros):
            tensors = to_tensors(micro, self.device)
            new, behind = read_values(self.model, self.head, tensors)
            old, behind = before[number] if before else (new.detach(), behind)
            found = credit(old, behind, tensors.sampled, self.cfg.critic, costs[number] if costs else None)
            losses = 0.5 * (new - found.targets).square()
            total = losses.sum()
            if not torch.isfinite(total):
                raise LearnerError(f"the critic's loss of rank {self.rank} is {total.item()}: lower critic.lr")
            self.model.backward(total * (scale if micro.counts else 0.0), last=number == len(micros) - 1)
            made.append(found.advantages)
            if micro.counts:
                sums += _sums(found, old, total.detach())
        return made

    def _optimize(self) -> float:
        """One step of both optimizers; returns the norm of both gradients before clipping, each by ``grad_clip``."""
        rate = self._rate(self.updates)
        norm = take_step(self.model, rate, "critic.lr")
        (weight,) = self.head.parameters()
        assert weight.grad is not None
        weight.grad.copy_(self._total(weight.grad) / self.world)
        own = float(torch.nn.utils.clip_grad_norm_(weight, self.cfg.learn.grad_clip))
        for group in self._head_optimizer.param_groups:
            group["lr"] = rate
        self._head_optimizer.step()
        self._head_optimizer.zero_grad()
        self.updates += 1
        return math.hypot(norm, own)

    def _rate(self, update: int) -> float:
        learn = self.cfg.learn
        return learning_rate(update, learn, self.total_updates) * self.cfg.critic.lr / learn.lr

    def _whitened(self, minis: Sequence[MiniBatch], made: list[list[Tensor]]) -> list[list[Tensor]]:
        """Whiten over all micro-batches that count; the others keep values that are not used."""
        counts = [[micro.counts for micro in mini.ranks[self.rank]] for mini in minis]
        kept = chain.from_iterable(map(compress, made, counts))
        found = iter(whitened(list(kept), self._total))
        return [
            [next(found) if counted else own for own, counted in zip(*batch, strict=True)]
            for batch in zip(made, counts, strict=True)
        ]

    def _total(self, own: Tensor) -> Tensor:
        """Collective: the sum over ranks."""
        if self.world > 1:
            own = own.to(self.device)
            dist.all_reduce(own)
        return own

    def save_head(self, folder: Path) -> None:
        """Write head and optimizer beside the shards in ``folder``. Raises OSError, RuntimeError."""
        state = {"head": self.head.state_dict(), "optimizer": self._head_optimizer.state_dict()}
        torch.save(state, folder / HEAD)

    def load_head(self, folder: Path) -> None:
        """Load what ``save_head`` wrote."""
        state = torch.load(folder / HEAD, map_location=self.device, weights_only=True)
        self.head.load_state_dict(state["head"])
        self._head_optimizer.load_state_dict(state["optimizer"])


def _sums(found: Credit, old: Tensor, loss: Tensor) -> Tensor:
    """Tokens; sums of R, R^2, R - V, (R - V)^2, V and of the losses."""
    targets, values = found.targets.double(), old.double()
    errors = targets - values
    told = [targets.sum(), targets.square().sum(), errors.sum(), errors.square().sum(), values.sum(), loss.double()]
    return torch.stack([torch.tensor(len(values), dtype=torch.float64, device=values.device), *told]).cpu()
