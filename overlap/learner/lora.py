"""Adapters (LoRA, Hu et al. 2021): what is trained in the place of a policy's weights, and what becomes of it.

    adapt ──▶ they alone are trained ───┬──▶ published alone (``alone``)
                                        ├──▶ in each weight that is published or saved (``weights.LowRank``)
                                        └──▶ beside a saved policy, as peft has them (``save_adapter``)

They are peft's, put into the policy itself: class, output layer and configuration stay what the learner knows.
Importing this module imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlap.config.learn import LearnConfig
from overlap.core.errors import ConfigError
from overlap.policy.check import linear_layers
from overlap.weights.full import ADAPTER_SCALE, FullTensors, LowRank, whole_shape

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = "adapter"
"""Folder of adapters in a saved policy."""
_NAME = "default"  # peft's, for the only one
_DOWN, _UP = f".lora_A.{_NAME}.weight", f".lora_B.{_NAME}.weight"


def adapt(policy: Any, learn: LearnConfig) -> dict[str, LowRank]:
    """Freeze a Hugging Face model and put adapters of ``learn.lora_rank`` beside the linear layers of its decoder, not
    its output layer; returns them by the names of the weights that they belong to. Rank 0: nothing is done.

    They begin as nothing, and equal on all ranks. Raises ConfigError for a family with weights of another kind.
    """
    if not learn.lora_rank:
        return {}
    import torch
    from peft import inject_adapter_in_model
    from peft.tuners.lora import LoraLayer

    config = _config(learn.lora_rank, _targets(policy, learn.lora_rank), policy.config.name_or_path)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(torch.initial_seed())  # whatever loading has drawn
        inject_adapter_in_model(config, policy)
    return {
        f"{name}.weight": LowRank(layer.lora_A[_NAME].weight, layer.lora_B[_NAME].weight, layer.scaling[_NAME])
        for name, layer in policy.named_modules()
        if isinstance(layer, LoraLayer)
    }


def _config(rank: int, targets: list[str], base: str) -> Any:
    from peft import LoraConfig

    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=int(ADAPTER_SCALE * rank),
        lora_dropout=0.0,
        target_modules=targets,
        base_model_name_or_path=base,
    )
    config.target_modules = targets  # as a list it is written in one order
    return config


def _targets(policy: Any, rank: int) -> list[str]:
    """``linear_layers``, where adapters on them are all that a family needs."""
    from torch import nn

    linear = linear_layers(policy)
    modules = policy.base_model.named_modules()
    known = {name for name, module in modules if isinstance(module, nn.Linear | nn.Embedding)}
    others = [
        name
        for name, p in policy.base_model.named_parameters()
        if len(whole_shape(p)) > 1 and name.rpartition(".")[0] not in known
    ]
    if others or not linear:
        found = f"{others[0]} is no linear layer" if others else "it has no linear layers"
        way_out = f"LoRA adapts linear layers, and in {type(policy).__name__} {found}: use 0, or a family like"
        raise ConfigError("learn.lora_rank", rank, f"{way_out} Llama or Qwen")
    return linear


@contextmanager
def without_adapters(policy: Any) -> Iterator[None]:
    """Within, the policy is what it was before it was adapted. Not between a forward pass and its backward pass."""
    from peft.tuners.lora import LoraLayer

    layers = [module for module in policy.modules() if isinstance(module, LoraLayer)]
    try:
        for layer in layers:
            layer.enable_adapters(False)
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def whole(adapters: Mapping[str, LowRank], zero_stage: int) -> dict[str, LowRank]:
    """Copies in host memory; collective under ZeRO-3."""
    named = [(f"{name}:{part}", getattr(a, part)) for name, a in adapters.items() for part in ("down", "up")]
    parts = {name: tensor.to("cpu", copy=True) for name, tensor in FullTensors(named, zero_stage)}
    return {name: LowRank(parts[f"{name}:down"], parts[f"{name}:up"], a.scale) for name, a in adapters.items()}


def alone(adapters: Mapping[str, LowRank], zero_stage: int) -> FullTensors:
    """The tensors of the adapters, by the names that peft gives them in files."""
    return FullTensors([pair for name, a in adapters.items() for pair in a.named(name).items()], zero_stage)


def from_state(tensors: Mapping[str, Tensor]) -> dict[str, LowRank]:
    """The adapters among the tensors of a policy, by the names of the weights that they belong to."""
    stems = [name.removesuffix(_DOWN) for name in tensors if name.endswith(_DOWN)]
    return {f"{stem}.weight": LowRank(tensors[stem + _DOWN], tensors[stem + _UP], ADAPTER_SCALE) for stem in stems}


def save_adapter(adapters: Mapping[str, LowRank], base: Path, folder: Path) -> None:
    """Write adapters in host memory into ``folder``, for peft to load onto the checkpoint ``base``. Raises OSError."""
    from safetensors.torch import save_file

    tensors = {file: tensor for name, adapter in adapters.items() for file, tensor in adapter.named(name).items()}
    targets = sorted({name.split(".")[-2] for name in adapters})
    rank = len(next(iter(adapters.values())).down)
    folder.mkdir(parents=True, exist_ok=True)
    config = _config(rank, targets, str(base))
    config.inference_mode = True
    config.save_pretrained(folder)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
