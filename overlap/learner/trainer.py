"""One rank's part of the training: an optimizer step from the micro-batches of a mini-batch.

Normalisation: every micro-batch contributes the *sum* of its token losses, times ranks over the number of counted
tokens of the whole mini-batch. The backend adds the gradients of micro-batches up and averages them over ranks, which
the factor undoes. So neither the split nor the number of ranks changes the gradient.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from overlap.config import Config
from overlap.errors import ConfigError, LearnerError
from overlap.learner.backend import TrainBackend
from overlap.learner.compiled import compile_parts
from overlap.learner.correction import correction
from overlap.learner.critic_trainer import CriticTrainer
from overlap.learner.lora import adapt, without_adapters
from overlap.learner.loss import TokenLoss, token_loss
from overlap.learner.losses import policy_loss
from overlap.learner.micro_batch import MicroBatch, MiniBatch, PromptGroup, SplitConfig, mini_batches
from overlap.learner.model import Policy, checkpoint_layers, choose_attention, load_policy, plain
from overlap.learner.offload import HostBuffers, ModelMemory, Residency, host_bytes
from overlap.learner.optimizer import learning_rate, take_step
from overlap.learner.sequence import SequenceGroup
from overlap.learner.statistics import Tally
from overlap.learner.tensors import MicroTensors, to_tensors
from overlap.weights import FullTensors, whole_shape


class RankTrainer:
    """Model, optimizer and (for a KL penalty) reference policy of one rank; with "gae" a critic beside them.

    ``model`` is the policy as ``backend`` trains it, ``critic`` the checkpoint that a critic starts from.
    ``total_updates`` are those of a run; the policy takes none of those in which the critic is alone.
    """

    def __init__(
        self, cfg: Config, policy: Path, critic: Path, device: torch.device, total_updates: int, backend: TrainBackend
    ) -> None:
        self.cfg, self.device, self._backend = cfg, device, backend
        policy_loss(cfg.learn.loss)  # functions of the user's are tried before anything is loaded
        correction(cfg.learn.correction)
        self.total_updates = total_updates - cfg.critic.warmup_steps * cfg.learn.updates_per_step
        self.updates = 0
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        model = self._load(policy)
        with backend.gathered(model):
            packs = choose_attention(model, device)
        again = checkpoint_layers(model, cfg.learn)
        self.critic = None
        if cfg.learn.advantage == "gae":
            self.critic = CriticTrainer(cfg, critic, device, total_updates, backend)
            packs = packs and self.critic.packs
        parts = cfg.learn.sequence_parallel
        if parts > 1:
            model.sequence = self._share_sequences(model, packs)
        print(f"prompts shared within a group: {packs}; gradient checkpointing: {again}", flush=True)
        print(f"compiled: {self.compiled}", flush=True)
        self._split = SplitConfig(
            cfg.learn.updates_per_step,
            self.world // parts,
            cfg.learn.micro_batch_tokens,
            whole_shape(model.head.weight)[1],
            padded=not packs,
        )
        own_reference = cfg.learn.kl_coef and not cfg.learn.lora_rank
        self._reference = self._load_reference(policy, model.sequence) if own_reference else None
        self.adapters = adapt(model.policy, cfg.learn)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=cfg.learn.lr, weight_decay=cfg.learn.weight_decay, fused=True)
        self.model = backend.train(model, optimizer)
        self.residency = Residency(device)

    def residency_of(self) -> Residency:
        """Residency by which policy and critic leave the device for each other, and for an engine."""
        host, beside = HostBuffers(host_bytes), [self._reference] if self._reference is not None else []
        own = ModelMemory(self.model, host, self.device, beside)
        critic = ModelMemory(self.critic.model, host, self.device) if self.critic is not None else None
        return Residency(self.device, own, critic)

    def _load(self, path: Path) -> Policy:
        dtype, temperature = getattr(torch, self.cfg.model.dtype), self.cfg.rollout.temperature
        model = load_policy(path, dtype=dtype, temperature=temperature, device=self.device, backend=self._backend)
        with self._backend.gathered(model):
            self.compiled = compile_parts(model, self.cfg.learn, self.device)
        return model

    def _load_reference(self, path: Path, sequence: SequenceGroup | None) -> Any:
        """The policy that a KL penalty holds on to."""
        reference = self._load(path).requires_grad_(False)
        reference.sequence = sequence
        return self._backend.freeze(reference)

    def _share_sequences(self, model: Policy, packs: bool) -> SequenceGroup:
        parts = self.cfg.learn.sequence_parallel
        if not packs:
            way_out = "the model's own attention cannot be split over ranks: use 1"
            raise ConfigError("learn.sequence_parallel", parts, way_out)
        return self._backend.share_sequences(model.policy, parts)

    def _own(self, mini: MiniBatch) -> tuple[MicroBatch, ...]:
        """The micro-batches that this rank computes, or a part of each."""
        return mini.ranks[self.rank // self.cfg.learn.sequence_parallel]

    def _tensors(self, micro: MicroBatch) -> MicroTensors:
        return to_tensors(micro, self.device, self.cfg.learn.sequence_parallel)

    def step(self, groups: Sequence[PromptGroup], *, alone: bool = False) -> dict[str, float]:
        """One batch: ``updates_per_step`` optimizer steps of the critic, if there is one, and then, unless that is to
        learn ``alone``, of the policy. Returns the metrics of ``StepReport``, equal on all ranks.
        """
        minis = mini_batches(groups, self._split)
        tokens = sum(mini.counted for mini in minis)
        told = {"tokens": float(tokens), "tokens_padded_share": sum(m.padding for m in minis) / len(minis)}
        advantages: Sequence[list[Tensor] | None] = [None] * len(minis)
        if self.critic is not None:
            with self.residency.critic():
                advantages, judged = self.critic.step(minis)
            told |= judged
        if not alone:
            with self.residency.policy():
                told |= self._learn(minis, advantages, tokens)
        return told | self.residency.pop_metrics()

    def _learn(
        self, minis: Sequence[MiniBatch], advantages: Sequence[list[Tensor] | None], tokens: int
    ) -> dict[str, float]:
        began = time.monotonic()
        old = self._before(minis)
        tally, norms, optimizer_s = Tally(self.device), [], 0.0
        for number, (mini, olds, made) in enumerate(zip(minis, old, advantages, strict=True)):
            self._accumulate(mini, olds, made, tally, first=not number)
            stepped = time.monotonic()
            norms.append(self._optimize())
            optimizer_s += time.monotonic() - stepped
        tally.reduce()
        return tally.metrics(tokens) | {
            "grad_norm": sum(norms) / len(norms),
            "lr": learning_rate(self.updates - 1, self.cfg.learn, self.total_updates),
            "forward_backward_s": time.monotonic() - began - optimizer_s,
            "optimizer_s": optimizer_s,
        }

    def _before(self, minis: Sequence[MiniBatch]) -> list[list[Tensor] | None]:
        """Log-probs before the first update of the batch, for each mini-batch; None where nothing needs them.

        In the first update the forward pass of the loss gives them. Without a clip nothing is held to them.
        """
        if not policy_loss(self.cfg.learn.loss).anchored:
            return [None] * len(minis)
        with torch.no_grad():
            return [None, *[[self.model.module(self._tensors(m))[0] for m in self._own(mini)] for mini in minis[1:]]]

    def _accumulate(
        self,
        mini: MiniBatch,
        olds: list[Tensor] | None,
        advantages: list[Tensor] | None,
        tally: Tally,
        *,
        first: bool,
    ) -> None:
        micros = self._own(mini)
        tells = self.rank % self.cfg.learn.sequence_parallel == 0  # all that share a sequence know the same
        scale = self.world / mini.counted
        for number, micro in enumerate(micros):
            made = advantages[number] if advantages else None
            loss = self._token_loss(micro, olds[number] if olds else None, made, first)
            if not torch.isfinite(loss.total):
                raise LearnerError(
                    f"the loss of rank {self.rank} is {loss.total.item()}: lower learn.lr or learn.grad_clip"
                )
            self.model.backward(loss.total * (scale if micro.counts else 0.0), last=number == len(micros) - 1)
            if micro.counts and tells:
                for found in loss.statistics:
                    tally.add(found)

    def _token_loss(self, micro: MicroBatch, old: Tensor | None, advantages: Tensor | None, first: bool) -> TokenLoss:
        tensors = self._tensors(micro)
        reference = self._initial(tensors) if self.cfg.learn.kl_coef else None
        new, entropy = self.model(tensors, entropy=bool(self.cfg.learn.entropy_coef))
        sampled = tensors.sampled if advantages is None else replace(tensors.sampled, advantages=advantages)
        return token_loss(new, sampled, self.cfg.learn, old=old, first=first, reference=reference, entropy=entropy)

    @torch.no_grad()
    def _initial(self, tensors: MicroTensors) -> Tensor:
        """Log-probs [T] by the policy that the run began with. Adapters were nothing then."""
        if self._reference is not None:
            logprobs: Tensor = self._reference(tensors)[0]
            return logprobs
        with without_adapters(self.model.module.policy):
            logprobs = self.model.module(tensors)[0]
        return logprobs

    def _optimize(self) -> float:
        """Take the optimizer step; returns the global gradient norm before clipping."""
        norm = take_step(self.model, learning_rate(self.updates, self.cfg.learn, self.total_updates), "learn.lr")
        self.updates += 1
        return norm

    @torch.no_grad()
    def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probs [T-1] of tokens 1..T-1 at the sampling temperature."""
        values: list[float] = self.model.module(plain(list(token_ids), self.device))[0].tolist()
        return values

    def full_tensors(self) -> FullTensors:
        """Full named tensors of the policy; iterating is collective where it is partitioned."""
        return self.model.full_tensors(self.adapters)
