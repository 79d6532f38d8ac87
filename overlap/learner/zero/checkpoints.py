"""Saved shards: written, read as full tensors, and cut anew for another number of ranks, or another ZeRO stage.

    shards of the old ranks ──▶ a parameter's pieces, joined ──▶ what of it falls into this rank's shard

Every rank reads the old shards by itself, mapped into memory: no more of them is in it than a parameter at a time, and
the disk takes no second copy, as DeepSpeed's universal checkpoints would. The layouts are those of DeepSpeed 0.19.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from overlap.core.errors import ConfigError, refusing

WEIGHTS = "fp32"
MOMENTS = ("exp_avg", "exp_avg_sq")
"""Adam's, by the names that torch gives them."""


def save_shards(engine: Any, folder: Path, frozen: Collection[str]) -> None:
    """Write this rank's part of the state of DeepSpeed's ``engine`` into ``folder``, but for the parameters ``frozen``.

    Raises what the first write raised when all barriers that DeepSpeed has between two of them are behind.
    """
    failed: list[OSError | RuntimeError] = []
    write = engine.checkpoint_engine.save

    def save(state_dict: Any, path: str) -> None:
        if "module" in state_dict:  # DeepSpeed leaves second names of a frozen parameter in
            kept = {name: tensor for name, tensor in state_dict["module"].items() if name not in frozen}
            state_dict = state_dict | {"module": kept}
        try:
            write(state_dict, path)
        except (OSError, RuntimeError) as error:
            failed.append(error)

    engine.checkpoint_engine.save = save
    engine._copy_recovery_script = lambda path: None  # `overlap export` does what it is for
    try:
        engine.save_checkpoint(
            str(folder.parent), tag=folder.name, save_latest=False, exclude_frozen_parameters=bool(frozen)
        )
    finally:
        engine.checkpoint_engine.save = write
    if failed:
        raise failed[0]


def saved_tensors(folder: Path, stage: int) -> dict[str, Tensor]:
    """Full tensors by name out of what ``save_shards`` wrote; needs no process group. Raises OSError, RuntimeError,
    ValueError or LookupError.

    Up to ZeRO 2 the first rank's file has the whole model in its own number type; under ZeRO 3
    each rank's has a part of the float32 weights, which DeepSpeed puts together.
    """
    found: dict[str, Tensor]
    if stage < 3:
        found = _load(folder, "mp_rank_00_model_states.pt")["module"]
        return found
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        found = get_fp32_state_dict_from_zero_checkpoint(str(folder.parent), tag=folder.name)
    return found


@dataclass(frozen=True, slots=True)
class _Piece:
    """``numel`` elements of a parameter from ``start`` on in the flat tensors of a shard's group."""

    flat: dict[str, Tensor]
    start: int
    numel: int


class OldShards:
    """The shards in ``folder`` of a state that ``ranks`` ranks wrote under ZeRO ``stage``."""

    def __init__(self, folder: Path, *, ranks: int, stage: int) -> None:
        """Raises ConfigError when one is missing or of an unknown layout."""
        self._folder = folder
        self.step: Any = None
        """Optimizer steps taken, as the optimizer counts them."""
        self._pieces: dict[str, list[_Piece]] = {}
        fault = "cannot be converted to another number of ranks"
        way_out = f"resume with learn.ranks={ranks} learn.zero_stage={stage}"
        unknown = (OSError, LookupError, TypeError, ValueError, RuntimeError)
        with refusing("checkpoint", str(folder), fault, way_out, unknown):
            # By name, in the order of each group's flat tensors.
            shapes = _load(folder, "*zero_pp_rank_0_mp_rank_00_model_states.pt")["param_shapes"] if stage == 3 else []
            for rank in range(ranks):
                shard = _load(folder, f"*zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")["optimizer_state_dict"]
                pieces = _pieces_3(shard, shapes, rank, ranks) if stage == 3 else _pieces(shard)
                for name, piece in pieces:
                    self._pieces.setdefault(name, []).append(piece)
                    self.step = piece.flat["step"]

    def whole(self, name: str, kind: str) -> Tensor:
        """A parameter's weights ("fp32") or a moment [numel], float32. Raises ConfigError where the shards lack it."""
        pieces = self._pieces.get(name)
        if pieces is None:
            way_out = f"belongs to another model: it has no parameter {name}; choose another checkpoint"
            raise ConfigError("checkpoint", str(self._folder), way_out)
        return torch.cat([p.flat[kind].narrow(0, p.start, p.numel).float() for p in pieces])


def _load(folder: Path, pattern: str) -> Any:
    files = list(folder.glob(pattern))
    if len(files) != 1:
        raise FileNotFoundError(f"{folder} has {len(files) or 'no'} files {pattern}")
    # The files are the run's own, and hold DeepSpeed's objects beside tensors.
    return torch.load(files[0], map_location="cpu", weights_only=False, mmap=True)


def _pieces(shard: dict[str, Any]) -> Iterator[tuple[str, _Piece]]:
    """ZeRO 1 and 2: ranks share a group's flat tensor, so a parameter may begin in one shard and end in the next."""
    for group, mappings in enumerate(shard["param_slice_mappings"]):
        flat = _flat(shard["base_optimizer_state"]["state"][group], shard["single_partition_of_fp32_groups"][group])
        for name, at in mappings.items():
            yield name, _Piece(flat, at.start, at.numel)


def _pieces_3(
    shard: dict[str, Any], shapes: list[dict[str, torch.Size]], rank: int, ranks: int
) -> Iterator[tuple[str, _Piece]]:
    """ZeRO 3: each parameter is cut into equal parts, the last one padded."""
    for group, named in enumerate(shapes):
        flat = _flat(shard["optimizer_state_dict"]["state"][group], shard["fp32_flat_groups"][group])
        start = 0
        for name, shape in named.items():
            part = -(-shape.numel() // ranks)
            yield name, _Piece(flat, start, max(0, min(part, shape.numel() - rank * part)))
            start += part


def _flat(state: dict[str, Any], weights: Tensor) -> dict[str, Any]:
    return {WEIGHTS: weights, **{kind: state[kind] for kind in MOMENTS}, "step": state["step"]}


def load_resharded(optimizer: Any, old: OldShards, stage: int) -> None:
    """Fill DeepSpeed's ZeRO ``optimizer`` of this rank, and the weights of its model. Collective."""
    with torch.no_grad():
        if stage == 3:
            _fill_3(optimizer, old)
        else:
            _fill(optimizer, old)


def _fill(optimizer: Any, old: OldShards) -> None:
    if hasattr(optimizer, "bf16_groups"):  # DeepSpeed's optimizer for ZeRO 1 in bfloat16 is another one
        groups, partitions = optimizer.bf16_groups, optimizer.fp32_groups_flat_partition
    else:
        groups, partitions = optimizer.bit16_groups, optimizer.single_partition_of_fp32_groups
    for group, weights in zip(groups, partitions, strict=True):
        flat = _empty(weights)
        for param in group:
            if (at := param._hp_mapping) is None:
                continue  # nothing of it is in this rank's shard
            inside, there = at.lp_fragment_address, at.get_hp_fragment_address()
            for kind, target in flat.items():
                whole = old.whole(optimizer.param_names[param], kind)
                target.narrow(0, there.start, there.numel).copy_(whole.narrow(0, inside.start, inside.numel))
        _put(optimizer, weights, flat, old.step)
    optimizer.update_lp_params()


def _fill_3(optimizer: Any, old: OldShards) -> None:
    optimizer.checkpoint_event_prologue()
    rank = dist.get_rank()
    groups = zip(optimizer.fp16_groups, optimizer.fp32_partitioned_groups_flat, strict=True)
    for number, (group, weights) in enumerate(groups):
        flat, start = _empty(weights), 0
        for param in group:
            part = param.partition_numel()
            for kind, target in flat.items():
                mine = old.whole(optimizer.param_names[param], kind)[rank * part : (rank + 1) * part]
                target.narrow(0, start, len(mine)).copy_(mine)
            start += part
        _put(optimizer, weights, flat, old.step)
        optimizer.fp16_partitioned_groups_flat[number].copy_(weights)
        parts = optimizer.fp16_partitioned_groups[number]
        fresh = optimizer.unflatten(optimizer.fp16_partitioned_groups_flat[number], parts)
        for part, values in zip(parts, fresh, strict=True):
            part.data = values.data
    if optimizer.persistent_parameters:
        optimizer.persistent_parameters[0].partition(optimizer.persistent_parameters)
    optimizer.checkpoint_event_epilogue()


def _empty(weights: Tensor) -> dict[str, Tensor]:
    return {kind: torch.zeros_like(weights) for kind in (WEIGHTS, *MOMENTS)}


def _put(optimizer: Any, weights: Tensor, flat: dict[str, Tensor], step: Any) -> None:
    weights.data.copy_(flat[WEIGHTS])
    # Beside the weights, where a fused optimizer needs it: what was read is in the host's memory.
    counted = step.to(weights.device, copy=True) if isinstance(step, Tensor) else step
    optimizer.optimizer.state[weights] = {"step": counted, **{kind: flat[kind] for kind in MOMENTS}}
