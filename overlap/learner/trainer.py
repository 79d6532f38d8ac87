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

from overlap.config.fields import Config
from overlap.core.errors import ConfigError, LearnerError, blaming
from overlap.learner.arrival import ArrivalProbe, applied_share
from overlap.learner.correction import correction
from overlap.learner.critic import CriticTrainer
from overlap.learner.kept_logprobs import KeptLogprobs
from overlap.learner.lora import adapt, alone, without_adapters
from overlap.learner.losses import KL_ESTIMATES, TokenLoss, policy_loss, token_loss
from overlap.learner.micro_batch import MicroBatch, MiniBatch, PromptGroup, SplitConfig, mini_batches
from overlap.learner.model import Policy, plain, ready_policy
from overlap.learner.offload import HostBuffers, ModelMemory, Residency
from overlap.learner.statistics import Tally
from overlap.learner.tensors import MicroTensors, SequenceGroup, to_tensors
from overlap.learner.zero.backend import ZeroBackend, learning_rate, take_step
from overlap.weights.full import FullTensors, whole_shape

Known = Sequence[list[Tensor] | None]
"""Known values of a mini-batch before it is learned from, [T] for each micro-batch of this rank; None: not computed."""


class RankTrainer:
    """Model, optimizer and (for a KL penalty) reference policy of one rank; with "gae" a critic beside them.

    ``model`` is the policy as ``backend`` trains it, ``critic`` the checkpoint that a critic starts from, ``reference``
    that of the reference policy (None: the policy's).
    ``total_updates`` are those of a run; the policy takes none of those in which the critic is alone.
    """

    def __init__(
        self,
        cfg: Config,
        policy: Path,
        critic: Path,
        device: torch.device,
        total_updates: int,
        backend: ZeroBackend,
        reference: Path | None = None,
    ) -> None:
        self.cfg, self.device, self._backend = cfg, device, backend
        policy_loss(cfg.learn.loss)  # functions of the user's are tried before anything is loaded
        correction(cfg.learn.correction)
        self.total_updates = total_updates - cfg.critic.warmup_steps * cfg.learn.updates_per_step
        self.updates = 0
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        model, packs, self.compiled, again = ready_policy(policy, cfg, device, backend)
        self.critic = None
        if cfg.learn.advantage == "gae":
            self.critic = CriticTrainer(cfg, critic, device, total_updates, backend)
            packs = packs and self.critic.packs
        other = None
        if cfg.learn.own_reference:
            with blaming("learn.reference" if cfg.learn.reference else "model.policy"):
                other = ready_policy(reference or policy, cfg, device, backend, frozen=True)
            packs = packs and other.packs
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
        self._reference: Any = None
        if other is not None:
            other.policy.sequence = model.sequence
            self._reference_vocabulary, _ = whole_shape(other.policy.head.weight)
            self._reference = backend.freeze(other.policy)
        self.adapters = adapt(model.policy, cfg.learn)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=cfg.learn.lr, weight_decay=cfg.learn.weight_decay, fused=True)
        self.model = backend.train(model, optimizer)
        self._arrival = ArrivalProbe(self.model, self.adapters, cfg)
        self.residency = Residency(device)
        self.kept = KeptLogprobs()

    def residency_of(self) -> Residency:
        """Residency by which policy and critic leave the device for each other, and for an engine."""
        host, beside = HostBuffers(), [self._reference] if self._reference is not None else []
        own = ModelMemory(self.model, host, self.device, beside)
        critic = ModelMemory(self.critic.model, host, self.device) if self.critic is not None else None
        return Residency(self.device, own, critic)

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
        advantages: Known = [None for _ in minis]
        references: Known = advantages
        if self.critic is not None:
            references, costs = self._costs(minis)
            with self.residency.critic():
                advantages, judged = self.critic.step(minis, costs)
            told |= judged
        if not alone:
            with self.residency.policy():
                told |= self._learn(minis, advantages, references, tokens)
        return told | self.residency.pop_metrics()

    @torch.no_grad()
    def _costs(self, minis: Sequence[MiniBatch]) -> tuple[Known, Known]:
        """Log-probs by the reference policy, and what a KL penalty in the reward takes off what a critic is taught."""
        learn = self.cfg.learn
        if not learn.kl_coef or learn.kl_in == "loss":
            return [None for _ in minis], [None for _ in minis]
        references, costs = list[list[Tensor]](), list[list[Tensor]]()
        with self.residency.policy():
            for mini in minis:
                micros = [self._tensors(micro) for micro in self._own(mini)]
                references.append([self._initial(micro) for micro in micros])
                news = [self.model.module(micro)[0] for micro in micros]
                pairs = zip(news, references[-1], strict=True)
                costs.append([learn.kl_coef * KL_ESTIMATES[learn.kl_by](*pair) for pair in pairs])
        return references, costs

    def _learn(self, minis: Sequence[MiniBatch], advantages: Known, references: Known, tokens: int) -> dict[str, float]:
        before, began = self._arrival.read(), time.monotonic()
        tally, norms, optimizer_s = Tally(self.device), [], 0.0
        each = zip(minis, self._before(minis), advantages, references, strict=True)
        for number, (mini, *known) in enumerate(each):
            self._accumulate(mini, known, tally, first=not number)
            stepped = time.monotonic()
            norms.append(self._optimize())
            optimizer_s += time.monotonic() - stepped
        tally.reduce()
        told = tally.metrics(tokens) | applied_share(before, self._arrival.read())
        return told | {
            "grad_norm": sum(norms) / len(norms),
            "lr": learning_rate(self.updates - 1, self.cfg.learn, self.total_updates),
            "forward_backward_s": time.monotonic() - began - optimizer_s,
            "optimizer_s": optimizer_s,
            "sync/bytes": float(sum(tensor.bytes for tensor in self.sent_tensors().metadata)),
        }

    def _before(self, minis: Sequence[MiniBatch]) -> Known:
        """Log-probs before the first update of the batch, for each mini-batch; None where nothing needs them.

        In the first update the forward pass of the loss gives them. Without a clip nothing is held to them.
        """
        if not policy_loss(self.cfg.learn.loss).anchored:
            return [None] * len(minis)
        with torch.no_grad():
            return [None, *[[self.model.module(self._tensors(m))[0] for m in self._own(mini)] for mini in minis[1:]]]

    def _accumulate(self, mini: MiniBatch, known: Known, tally: Tally, *, first: bool) -> None:
        micros = self._own(mini)
        columns = [column or [None] * len(micros) for column in known]
        tells = self.rank % self.cfg.learn.sequence_parallel == 0  # all that share a sequence know the same
        scale = self.world / mini.counted
        for number, (micro, *own) in enumerate(zip(micros, *columns, strict=True)):
            loss, before = self._token_loss(micro, *own, first=first)
            if not torch.isfinite(loss.total):
                raise LearnerError(
                    f"the loss of rank {self.rank} is {loss.total.item()}: lower learn.lr or learn.grad_clip"
                )
            self.model.backward(loss.total * (scale if micro.counts else 0.0), last=number == len(micros) - 1)
            if micro.counts and tells:
                for found in loss.statistics:
                    tally.add(found)
                if before is not None:
                    self.kept.add(micro, before)

    def _token_loss(
        self,
        micro: MicroBatch,
        old: Tensor | None,
        advantages: Tensor | None,
        reference: Tensor | None,
        *,
        first: bool,
    ) -> tuple[TokenLoss, Tensor | None]:
        """The loss, and the log-probs [T] before the step, as far as they are known."""
        tensors = self._tensors(micro)
        if self.cfg.learn.kl_coef and reference is None:
            reference = self._initial(tensors)
        new, entropy = self.model(tensors, entropy=bool(self.cfg.learn.entropy_coef))
        sampled = tensors.sampled if advantages is None else replace(tensors.sampled, advantages=advantages)
        loss = token_loss(new, sampled, self.cfg.learn, old=old, first=first, reference=reference, entropy=entropy)
        return loss, new.detach() if first and old is None else old

    @torch.no_grad()
    def _initial(self, tensors: MicroTensors) -> Tensor:
        """Log-probs [T] by the reference policy: without one of its own the policy as the run began, when adapters were
        nothing.
        """
        logprobs: Tensor
        if self._reference is not None:
            logprobs = self._reference(tensors.within(self._reference_vocabulary))[0]
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

    def sent_tensors(self) -> FullTensors:
        """The same of what goes to the engine."""
        stage = self.cfg.learn.zero_stage
        return alone(self.adapters, stage) if self.cfg.sends_adapter else self.full_tensors()
