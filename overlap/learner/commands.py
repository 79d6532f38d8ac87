"""The calls that a rank serves. Every rank gets every call; the driver uses the result of rank 0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from overlap.core.errors import RunDirError, one_line
from overlap.learner.kept_logprobs import Found
from overlap.learner.lora import FOLDER, save_adapter, whole
from overlap.learner.micro_batch import PromptGroup
from overlap.learner.offload import free_gib
from overlap.learner.processes import RankSpec
from overlap.learner.saved_state import CRITIC_TAG, TAG, LearnerState, copy_beside, write_state
from overlap.learner.trainer import RankTrainer
from overlap.learner.zero.backend import ZeroBackend, ZeroModel
from overlap.policy.check import policy_digest
from overlap.process.run_environment import remove_exports
from overlap.weights.shm import open_sender


class Commands:
    """Public methods are the calls that ``rank`` serves, and collective where those of the backend are; ``chunk``,
    ``transmit`` and ``retire`` are the sender's.
    """

    def __init__(self, spec: RankSpec, device: torch.device) -> None:
        self._spec = spec
        backend = ZeroBackend(spec.cfg)
        backend.join(device)
        self._trainer = RankTrainer(
            spec.cfg, spec.policy, spec.critic, device, spec.total_updates, backend, spec.reference
        )
        if spec.placement.sleeps and spec.cfg.learn.offload != "none":
            self._trainer.residency = self._trainer.residency_of()
        self._residency = self._trainer.residency
        placed = spec.placement
        self._sender = open_sender(
            placed.backend,
            rank=spec.rank,
            engine_devices=placed.engine_devices,
            read=placed.feeds(spec.seat),
            address=placed.address,
        )
        self.chunk, self.transmit, self.retire = self._sender.chunk, self._sender.transmit, self._sender.retire
        self._version = 0
        self._base = policy_digest(spec.policy) if spec.cfg.learn.lora_rank else ""

    def step(self, groups: Sequence[PromptGroup], version: int) -> tuple[dict[str, float], Found]:
        """Learn from the groups; ``version`` is the number of the new weights, so it counts the steps. Returns metrics,
        and this rank's part of what was found for the kept samples.
        """
        metrics = self._trainer.step(groups, alone=version <= self._spec.cfg.critic.warmup_steps)
        self._version = version
        if self._spec.placement.sleeps and self._trainer.device.type == "cuda":
            torch.cuda.empty_cache()  # also where nothing is offloaded: the engine's weights come back first
        return metrics, self._trainer.kept.take()

    def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """See ``RankTrainer.logprobs``."""
        with self._residency.reading():
            values: list[float] = self._trainer.logprobs(token_ids)
        return values

    def sleep(self) -> None:
        """Offload what ``learn.offload`` names, where an engine shares the device."""
        self._residency.sleep()

    def free(self, moment: str) -> float | None:
        """See ``free_gib``."""
        return free_gib(self._trainer.device, moment)

    def publish(self) -> tuple[str, dict[str, Any]]:
        """Backend and info of a WeightUpdate."""
        self._residency.send()
        return self._spec.placement.backend, self._sender.prepare(self._trainer.sent_tensors())

    def save(self, folder: Path, kind: Literal["policy", "state"]) -> int:
        """Write into ``folder``, which the driver renames when it is whole; returns the version written.

        Raises RunDirError on all ranks where one cannot write a file; then all can go on, for none waits for another. A
        rank without the device memory to load what it saves dies, because the others do wait for it.
        """
        what = f"{folder.parent}: the learner's {kind} cannot be written"
        if kind == "policy":
            with self._residency.reading(), self._together(what):
                self._save_policy(folder)
        else:
            with self._residency.all_readable():
                self._save_state(folder, what)
        return self._version

    @contextmanager
    def _together(self, what: str) -> Iterator[None]:
        """Collective: raises RunDirError on every rank when a write inside has failed on one."""
        failed: OSError | RuntimeError | None = None
        try:
            yield
        except (OSError, RuntimeError) as error:  # torch's writer turns a full disk into a RuntimeError
            failed = error
        count = torch.tensor([int(failed is not None)], device=self._trainer.device)
        dist.all_reduce(count)
        if failed is not None:
            raise RunDirError(f"{what}: {getattr(failed, 'strerror', None) or one_line(failed)}") from failed
        if count.item():
            raise RunDirError(f"{what}: another rank could not write its part")

    def _save_policy(self, folder: Path) -> None:
        first = self._spec.rank == 0
        adapters = whole(self._trainer.adapters, self._spec.cfg.learn.zero_stage)
        if not first:
            self._trainer.full_tensors().take_part()
            return
        state = {name: t.to("cpu", copy=True) for name, t in self._trainer.full_tensors()}
        folder.mkdir(parents=True, exist_ok=True)
        self._trainer.model.module.policy.save_pretrained(folder, state_dict=state)
        copy_beside(self._spec.policy, folder)
        if adapters:
            save_adapter(adapters, self._spec.policy, folder / FOLDER)

    def _save_state(self, folder: Path, what: str) -> None:
        """Every rank writes its shards."""
        for tag, model in self._models.items():
            with self._together(what):
                (folder / tag).mkdir(parents=True, exist_ok=True)
            with self._together(what):
                model.save(folder / tag)
        with self._together(what):
            if self._spec.rank == 0:
                self._save_rest(folder)

    def _save_rest(self, folder: Path) -> None:
        learn, critic = self._spec.cfg.learn, self._trainer.critic
        state = LearnerState(self._version, self._trainer.updates, learn.ranks, learn.zero_stage)
        state = replace(state, lora_rank=learn.lora_rank, base=self._base)
        if critic is not None:
            critic.save_head(folder / CRITIC_TAG)
            state = replace(state, critic_updates=critic.updates)
        write_state(folder, self._spec.cfg, state)

    @property
    def _models(self) -> dict[str, ZeroModel]:
        """Policy and, if there is one, critic, by the folder of their shards."""
        critic = self._trainer.critic
        models = {TAG: self._trainer.model}
        return models if critic is None else models | {CRITIC_TAG: critic.model}

    def restore(self, folder: Path, state: LearnerState) -> None:
        """Load what ``save`` wrote as "state", for this number of ranks or another."""
        for tag, model in self._models.items():
            with self._residency.restoring(critic=tag == CRITIC_TAG):
                model.restore(folder / tag, ranks=state.ranks, zero_stage=state.zero_stage)
        self._trainer.updates, self._version = state.updates, state.version
        if (critic := self._trainer.critic) is not None:
            critic.load_head(folder / CRITIC_TAG)
            critic.updates = state.critic_updates or 0

    def close(self) -> None:
        """Free what the rank holds; it ends after that, at once, so what torch removes at its exit is removed here."""
        self._sender.close()
        remove_exports()
