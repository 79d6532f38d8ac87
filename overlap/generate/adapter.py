"""Adapters (LoRA) in the engine's workers: a sync replaces the one that every request names, in its place.

    start ──▶ AdapterIntake replaces the model ──▶ load_weights, once or more ──▶ place

So weight transfers, their failures and what becomes of running requests are the same as for a policy's weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper

from overlap.generate.service import ADAPTER_ID
from overlap.weights.full import ADAPTER_SCALE


class AdapterIntake:
    """The received part of an adapter, until all of it is there; nothing of the model changes before that."""

    def __init__(self, model: Any) -> None:
        self._model, self._tensors = model, dict[str, torch.Tensor]()

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy them: the sender's memory is used again."""
        self._tensors |= {name: tensor.to("cpu", copy=True) for name, tensor in tensors}

    def place(self) -> None:
        """Replace the adapter. RuntimeError where a layer's is missing, or belongs to no layer."""
        manager = self._model.lora_manager
        adapter = _adapter(self._model, self._tensors, manager.lora_config.lora_dtype)
        manager.remove_adapter(ADAPTER_ID)
        manager.add_adapter(adapter)  # which puts queries, keys and values together, as the layer has them
        wanted, found = set(manager.modules), {name for name, lora in adapter.loras.items() if _is_whole(lora)}
        if wanted != found:
            manager.remove_adapter(ADAPTER_ID)
            odd = sorted(wanted ^ found)
            what = f"the adapters of {len(odd)} layers were not sent, or have no place here ({odd[0]})"
            raise RuntimeError(f"{what}: train all weights (learn.lora_rank=0)")
        manager.activate_adapter(ADAPTER_ID)


def takes_adapter(model: Any) -> bool:
    """Return whether a model of vLLM has a place for adapters."""
    return hasattr(model, "lora_manager")


def expect_adapter(engine: Any) -> bool:
    """Have a weight transfer engine receive an adapter, if its model has a place for one; return whether it has one."""
    if takes := takes_adapter(engine.model):
        engine.set_weight_update_target(AdapterIntake(engine.model), engine.model_config)
    return takes


def place_adapter(engine: Any) -> bool:
    """Use the adapter that a weight transfer engine has received, if it was to receive one; return whether it was.
    Raises as ``AdapterIntake.place``.
    """
    takes = isinstance(engine.model, AdapterIntake)
    if takes:
        engine.model.place()
        if engine.device.type != "cpu":
            torch.accelerator.synchronize()
    return takes


def _is_whole(lora: Any) -> bool:
    """Return whether both halves of a layer's adapter are there; of a joint layer (queries, keys, values) all."""
    halves = [half if isinstance(half, list) else [half] for half in (lora.lora_a, lora.lora_b)]
    return all(part is not None for half in halves for part in half)


def _adapter(model: Any, tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> LoRAModel:
    rank = next((len(tensor) for name, tensor in tensors.items() if ".lora_A." in name), 0)
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    return LoRAModel.from_lora_tensors(
        ADAPTER_ID,
        tensors,
        PEFTHelper(r=rank, lora_alpha=int(ADAPTER_SCALE * rank), target_modules=[]),
        device="cpu",
        dtype=dtype,
        weights_mapper=mapper and mapper.get_rename_mapper(),
        skip_prefixes=getattr(model, "lora_skip_prefixes", None),
    )
