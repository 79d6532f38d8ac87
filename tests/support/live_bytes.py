"""How many bytes of tensors live at once while something is computed, counted and not sampled."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """Within ``with``: ``peak`` is the most bytes, of tensors made in it, that lived at once."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak = 0, 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(t.untyped_storage()) for t in tree_iter((args, kwargs)) if isinstance(t, torch.Tensor)}
        made = func(*args, **(kwargs or {}))
        for tensor in tree_iter(made):
            if isinstance(tensor, torch.Tensor) and id(tensor.untyped_storage()) not in given | self._known:
                self._watch(tensor.untyped_storage())
        return made

    def _watch(self, storage: torch.UntypedStorage) -> None:
        self._known.add(id(storage))
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._gone, id(storage), storage.nbytes())

    def _gone(self, number: int, size: int) -> None:
        self._known.discard(number)
        self.live -= size
