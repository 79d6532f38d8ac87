"""The learner's log-probs of the samples that are kept for people to look at.

    flatten: which responses   ──▶ ranks: the pass that the loss makes anyway ──▶ driver: joined by sample

They are by the weights before the step, at ``rollout.temperature``, so they compare with the engine's. No pass is made
for them: in the first update of a step they are what the loss sees, in later ones what its ratios are held to. Where
nothing is held to anything ("pg") samples of later updates have none.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from overlap.core import Batch, Packed, Trajectory
from overlap.learner.micro_batch import KeptAs, MicroBatch, Response

if TYPE_CHECKING:  # the driver reads this and has no torch
    from torch import Tensor

Found = Mapping[KeptAs, Packed[float]]


class KeptLogprobs:
    """Log-probs of one rank's micro-batches, from a step until they are taken."""

    def __init__(self) -> None:
        self._parts: list[tuple[Response, Tensor]] = []

    def add(self, micro: MicroBatch, logprobs: Tensor) -> None:
        """``logprobs`` [T] of the counted tokens of the micro-batch."""
        start = 0
        for response in (response for row in micro.rows for response in row.responses):
            end = start + response.counted
            if response.kept_as is not None:
                self._parts.append((response, logprobs[start:end].detach()))
            start = end

    def take(self) -> dict[KeptAs, Packed[float]]:
        """By request and branch, [T] each; all come from the device at once."""
        import torch

        parts, self._parts = self._parts, []
        if not parts:
            return {}
        each = torch.cat([values for _, values in parts]).float().cpu().split([len(values) for _, values in parts])
        return {
            response.kept_as: _spread(response, values)
            for (response, _), values in zip(parts, each, strict=True)
            if response.kept_as is not None
        }


def _spread(response: Response, values: Tensor) -> Packed[float]:
    """On all tokens of the response: 0 where others said them, NaN for the last one where it is not in the loss."""
    import torch

    from overlap.learner.tensors import counted_places

    all_ = torch.zeros(len(response.tokens))
    if response.bootstraps:
        all_[-1] = math.nan
    all_[counted_places(response)] = values
    numbers = array("f")
    numbers.frombytes(all_.numpy().tobytes())
    return Packed("f", numbers)


def join_kept(
    batch: Batch, kept: Collection[int], answers: Iterable[Found], *, bootstraps: bool
) -> dict[str, tuple[Packed[float], ...]]:
    """Join what the ranks have found for the kept groups: by sample, [T] for each of its branches.

    Samples that were not learned from are left out, and those of which a branch is not known.
    """
    found = {place: values for answer in answers for place, values in answer.items()}
    joined = {}
    for scored in (scored for group in batch.groups if group.id in kept for scored in group.samples):
        trajectory = scored.trajectory
        idle = bootstraps and trajectory.truncated
        branches = [
            found.get((scored.id, number)) or _unlearned(branch, idle)
            for number, branch in enumerate(trajectory.branches)
        ]
        known = [branch for branch in branches if branch is not None]
        if len(known) == len(branches) and any((scored.id, number) in found for number in range(len(branches))):
            joined[scored.id] = tuple(known)
    return joined


def _unlearned(branch: Trajectory, bootstraps: bool) -> Packed[float] | None:
    """Values of a branch without any token in the loss; None for one that has some."""
    if branch.trained - bootstraps > 0:
        return None
    numbers = [0.0] * len(branch.token_ids)
    if bootstraps and branch.trained:
        numbers[-1] = math.nan
    return Packed("f", numbers)
