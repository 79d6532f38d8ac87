"""One rank's part of the training: an optimizer step from the micro-batches of a mini-batch.

Normalisation: every micro-batch contributes the *sum* of its token losses, times ranks over the number of counted
tokens of the whole mini-batch. DeepSpeed is told of one accumulation step, so it divides by nothing there, and it
averages over ranks, which the factor undoes. So neither the split nor the number of ranks changes the gradient.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from overlap.config import Config, LearnConfig
from overlap.errors import ConfigError, LearnerError
from overlap.learner.loss import LossConfig, TokenLoss, token_loss
from overlap.learner.micro_batch import MicroBatch, MiniBatch, PromptGroup, SplitConfig, mini_batches
from overlap.learner.model import Policy, checkpoint_layers, choose_attention, load_policy, plain
from overlap.learner.sequence import SequenceGroup, share_sequences
from overlap.learner.statistics import Tally
from overlap.learner.tensors import MicroTensors, to_tensors
from overlap.weights import FullTensors, full_tensors


def learning_rate(update: int, learn: LearnConfig, total: int) -> float:
    """Rate of optimizer step ``update`` (from 0) of ``total``: linear warm-up to ``lr``, then the schedule.

    The warm-up's step i has (i + 1) / warmup of the rate; linear and cosine reach 0 one step after the last.
    """
    if update < learn.warmup_steps:
        return learn.lr * (update + 1) / learn.warmup_steps
    span = max(1, total - learn.warmup_steps)
    done = min(1.0, (update - learn.warmup_steps) / span)
    factor = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1.0 + math.cos(math.pi * done))}
    return learn.lr * factor[learn.schedule]


def deepspeed_config(cfg: Config) -> dict[str, Any]:
    """DeepSpeed's configuration. Gradients are summed in float32 in any case, over micro-batches as over ranks."""
    bf16 = cfg.model.dtype == "bfloat16"
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": cfg.learn.grad_clip,
        "bf16": {"enabled": bf16},
        "zero_optimization": {"stage": cfg.learn.zero_stage},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "steps_per_print": 2**62,
    }


class RankTrainer:
    """Model, optimizer and (for a KL penalty) reference policy of one rank.

    ``deepspeed`` is what DeepSpeed made of model and optimizer.
    """

    def __init__(self, cfg: Config, policy: Path, device: torch.device, total_updates: int) -> None:
        import deepspeed

        self.cfg, self.device, self.total_updates = cfg, device, total_updates
        self.updates = 0
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        dtype = getattr(torch, cfg.model.dtype)
        model = load_policy(policy, dtype=dtype, temperature=cfg.rollout.temperature, device=device)
        packs = choose_attention(model, device)
        shares = packs and cfg.learn.share_prompts == "auto"
        again = checkpoint_layers(model, cfg.learn)
        parts = cfg.learn.sequence_ranks
        if parts > 1:
            model.sequence = self._share_sequences(model, packs)
        print(f"responses of a group share their prompt: {shares}; layers are computed again: {again}", flush=True)
        self._split = SplitConfig(
            cfg.learn.updates_per_step,
            self.world // parts,
            cfg.learn.micro_batch_tokens,
            model.head.weight.shape[1],
            shares,
            padded=not packs,
        )
        self._reference = None
        if cfg.learn.kl_coef:
            self._reference = load_policy(
                policy, dtype=dtype, temperature=cfg.rollout.temperature, device=device
            ).requires_grad_(False)
            self._reference.sequence = model.sequence
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=cfg.learn.lr, weight_decay=cfg.learn.weight_decay, fused=True
        )
        self.deepspeed, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=deepspeed_config(cfg))
        names = LossConfig.__dataclass_fields__
        self._loss = LossConfig(**{name: getattr(cfg.learn, name) for name in names})

    def _share_sequences(self, model: Policy, packs: bool) -> SequenceGroup:
        parts = self.cfg.learn.sequence_ranks
        if not packs:
            way_out = "the model's attention is its own, and sees only a part: use 1"
            raise ConfigError("learn.sequence_ranks", parts, way_out)
        return share_sequences(model.policy, parts)

    def _own(self, mini: MiniBatch) -> tuple[MicroBatch, ...]:
        """The micro-batches that this rank computes, or a part of each."""
        return mini.ranks[self.rank // self.cfg.learn.sequence_ranks]

    def _tensors(self, micro: MicroBatch) -> MicroTensors:
        return to_tensors(micro, self.device, self.cfg.learn.sequence_ranks)

    def step(self, groups: Sequence[PromptGroup]) -> dict[str, float]:
        """One batch: ``updates_per_step`` optimizer steps. Returns the metrics of ``StepReport``, equal on all
        ranks.
        """
        minis = mini_batches(groups, self._split)
        began = time.monotonic()
        old = self._before(minis)
        tally, norms, optimizer_s = Tally(self.device), [], 0.0
        for number, (mini, olds) in enumerate(zip(minis, old, strict=True)):
            self._accumulate(mini, olds, tally, first=not number)
            stepped = time.monotonic()
            norms.append(self._optimize())
            optimizer_s += time.monotonic() - stepped
        tokens = sum(mini.counted for mini in minis)
        tally.reduce()
        return tally.told(tokens) | {
            "grad_norm": sum(norms) / len(norms),
            "lr": learning_rate(self.updates - 1, self.cfg.learn, self.total_updates),
            "tokens": float(tokens),
            "tokens_padded_share": sum(m.padding for m in minis) / len(minis),
            "forward_backward_s": time.monotonic() - began - optimizer_s,
            "optimizer_s": optimizer_s,
        }

    def _before(self, minis: Sequence[MiniBatch]) -> list[list[Tensor] | None]:
        """Log-probs before the first update of the batch, for each mini-batch; None where nothing needs them.

        In the first update the forward pass of the loss gives them. Without PPO's clip nothing is held to them.
        """
        if self._loss.surrogate == "pg":
            return [None] * len(minis)
        return [None, *[self._old(mini) for mini in minis[1:]]]

    @torch.no_grad()
    def _old(self, mini: MiniBatch) -> list[Tensor]:
        return [self.deepspeed.module(self._tensors(m))[0] for m in self._own(mini)]

    def _accumulate(self, mini: MiniBatch, olds: list[Tensor] | None, tally: Tally, *, first: bool) -> None:
        micros = self._own(mini)
        tells = self.rank % self.cfg.learn.sequence_ranks == 0  # all that share a sequence know the same
        scale = self.world / mini.counted
        for number, micro in enumerate(micros):
            self.deepspeed.set_gradient_accumulation_boundary(number == len(micros) - 1)
            loss = self._token_loss(micro, olds[number] if olds else None, first)
            if not torch.isfinite(loss.total):
                raise LearnerError(
                    f"the loss of rank {self.rank} is {loss.total.item()}: lower learn.lr or learn.grad_clip"
                )
            self.deepspeed.backward(loss.total * (scale if micro.counts else 0.0))
            if micro.counts and tells:
                for found in loss.statistics:
                    tally.add(found)

    def _token_loss(self, micro: MicroBatch, old: Tensor | None, first: bool) -> TokenLoss:
        tensors = self._tensors(micro)
        new, entropy = self.deepspeed(tensors, entropy=bool(self.cfg.learn.entropy_coef))
        reference = None
        if self._reference is not None:
            with torch.no_grad():
                reference = self._reference(tensors)[0]
        sampled = tensors.sampled
        return token_loss(new, sampled, self._loss, old=old, first=first, reference=reference, entropy=entropy)

    def _optimize(self) -> float:
        """Take the optimizer step; returns the global gradient norm before clipping."""
        rate = learning_rate(self.updates, self.cfg.learn, self.total_updates)
        for group in self.deepspeed.optimizer.param_groups:
            group["lr"] = rate
        self.deepspeed.step()
        self.updates += 1
        norm = float(self.deepspeed.get_global_grad_norm())
        if not math.isfinite(norm):
            raise LearnerError(f"the gradient norm of update {self.updates} is {norm}: lower learn.lr")
        return norm

    @torch.no_grad()
    def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probs [T-1] of tokens 1..T-1 at the sampling temperature."""
        values: list[float] = self.deepspeed.module(plain(list(token_ids), self.device))[0].tolist()
        return values

    def full_tensors(self) -> FullTensors:
        """Full named tensors of the policy; iterating is collective under ZeRO-3."""
        return full_tensors(self.deepspeed.module.policy, self.cfg.learn.zero_stage)
