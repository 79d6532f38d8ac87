"""A model that no rank ever holds whole: under ZeRO-3 each tensor is partitioned as soon as transformers has read it.

    files ──▶ a tensor as the model wants it ──▶ this rank's partition; the rest of the tensor is let go

All else is transformers' own, and so the same as without partitions: which file has what, names that a family has
changed, tensors that it joins or splits, ties, and every refusal. It reads one tensor after the other here, and maps
safetensors into memory: of a tensor that needs no conversion only the pages of the partition are touched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

_ONE_BY_ONE = "HF_DEACTIVATE_ASYNC_LOAD"
"""Makes transformers read a tensor when it is needed; else threads would read, and convert, ahead."""


class Partitioner:
    """Loads models in DeepSpeed's partitions, with parameters in ``dtype``; ``zero`` is DeepSpeed's configuration.

    A parameter becomes what ``deepspeed.zero.Init`` makes of it, without the broadcast: all ranks have read the same.
    """

    def __init__(self, zero: dict[str, Any], dtype: torch.dtype) -> None:
        from deepspeed.runtime.zero import Init

        self._init = Init(module=nn.Module(), config_dict_or_path=zero)  # there is nothing to partition yet
        self._dtype = dtype

    def load(self, load: Callable[[], tuple[Any, dict[str, Any]]]) -> tuple[Any, dict[str, Any]]:
        """Return what ``load`` gives by ``from_pretrained`` of transformers, the model first. Ranks do not wait.

        What may be tied is partitioned last: transformers compares the two where a checkpoint has both.
        """
        with self._placing():
            model, found = load()
        for parameter in model.parameters():
            self._partition(parameter)
            parameter.data = torch.empty(0, dtype=parameter.dtype, device=self._init.local_device)
        return model, found

    @contextmanager
    def _placing(self) -> Iterator[None]:
        """Within it, what transformers puts into a model is partitioned at once."""
        from transformers import core_model_loading as core

        place = core.set_param_for_module

        def place_and_partition(model: Any, name: str, *rest: Any) -> None:
            place(model, name, *rest)
            owner, _, own_name = name.rpartition(".")
            parameter = model.get_submodule(owner)._parameters.get(own_name)
            tied = model.all_tied_weights_keys
            if parameter is not None and name not in tied and name not in tied.values():
                self._partition(parameter)

        before = os.environ.get(_ONE_BY_ONE)
        os.environ[_ONE_BY_ONE] = "1"
        core.set_param_for_module = place_and_partition
        try:
            yield
        finally:
            core.set_param_for_module = place
            if before is None:
                del os.environ[_ONE_BY_ONE]
            else:
                os.environ[_ONE_BY_ONE] = before

    @torch.no_grad()
    def _partition(self, parameter: Any) -> None:
        if parameter.is_meta or hasattr(parameter, "ds_id"):  # of another shape than in the files, or done
            return
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(self._dtype)
        self._init._convert_to_deepspeed_param(parameter)
        parameter.partition()
        # While others are being loaded transformers may ask for its shape: one number is expanded to it.
        parameter.data = torch.empty((), dtype=parameter.dtype).expand(parameter.ds_shape)


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Lets a partitioned model compute before DeepSpeed's engine has it: a module's parameters are gathered while it
    computes, those of a whole layer at once. Collective, if anything is partitioned.
    """
    layers = {layer for module in model.modules() if isinstance(module, nn.ModuleList) for layer in module}
    hooks: list[Any] = []
    for module in model.modules():
        parameters = [p for p in module.parameters(recurse=module in layers) if hasattr(p, "ds_id")]
        if parameters:
            hooks += _gathering(module, parameters)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _gathering(module: nn.Module, parameters: list[Any]) -> list[Any]:
    from deepspeed.runtime.zero import GatheredParameters

    held = ExitStack()

    def gather(*_: Any) -> None:
        for parameter in parameters:
            if not parameter.numel():  # else a module that calls this one has it
                held.enter_context(GatheredParameters([parameter]))  # several at once would be copied once more

    def let_go(*_: Any) -> None:
        held.close()

    return [module.register_forward_pre_hook(gather), module.register_forward_hook(let_go, always_call=True)]
