"""Which layers of a policy adapters are beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def adapted_layers(policy: Path) -> list[str]:
    """Last parts of the names of the linear layers in the decoder of a checkpoint, of which ``config.json`` is read."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        return linear_layers(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(policy)))


def linear_layers(policy: Any) -> list[str]:
    """The same of a Hugging Face model. Its output layer is none of them."""
    from torch import nn

    modules = policy.base_model.named_modules()
    return sorted({name.rpartition(".")[2] for name, module in modules if isinstance(module, nn.Linear)})
