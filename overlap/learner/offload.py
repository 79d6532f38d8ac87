"""Moves what a rank holds on its device to host memory and back, so that policy, critic and engine can share a GPU.

    phase       critic                     policy
    learning    loaded, then offloaded     loaded, then its parameters alone, which the engine gets
    generating  offloaded                  offloaded

Whole storages move, not tensors: their bytes are copied to a buffer of the host, and the storage's memory is freed.
Every tensor stays the same view of its storage. So the views that a backend keeps (flat partitions, their fragments,
the shards of parameters) need not be known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from overlap.learner.zero.backend import ZeroModel

_PAGE = 4096
_PINNED = 1 << 20  # bytes, from which on it is worth it

Find = Callable[[], Iterable[Tensor]]


class HostBuffers:
    """Buffers of host memory, by size. They are kept and used again, for pinning takes as long as copying."""

    def __init__(self) -> None:
        self._free = dict[int, list[Tensor]]()

    def take(self, size: int) -> Tensor:
        """Bytes [size], uint8; large ones are pinned, so that a GPU copies from and to them without a detour."""
        if free := self._free.get(size):
            return free.pop()
        if size < _PINNED or not torch.cuda.is_available():
            return torch.empty(size, dtype=torch.uint8)
        # torch's own pinned memory comes in powers of two, which may be twice as much.
        pages = -(-size // _PAGE) * _PAGE
        buffer = torch.empty(pages + _PAGE, dtype=torch.uint8)
        start = -buffer.data_ptr() % _PAGE  # a page can be pinned once only, so it has one owner
        torch.cuda.check_error(int(torch.cuda.cudart().cudaHostRegister(buffer.data_ptr() + start, pages, 0)))
        return buffer[start : start + size]

    def give_back(self, buffer: Tensor) -> None:
        self._free.setdefault(buffer.numel(), []).append(buffer)


@dataclass(frozen=True, slots=True)
class _Gone:
    storage: torch.UntypedStorage
    size: int
    copy: Tensor | None


class Offloadable:
    """Storages that are offloaded together: those of the tensors that ``find`` yields at that moment.

    ``keep``: their contents matter; otherwise they are zeros when they are loaded again.
    """

    def __init__(self, find: Find, host: HostBuffers, device: torch.device, *, keep: bool = True) -> None:
        self._find, self._host, self._device, self._keep = find, host, device, keep
        self._gone: dict[int, _Gone] = {}

    @property
    def loaded(self) -> bool:
        """True when the storages are on the device, as in the beginning."""
        return not self._gone

    def offload(self) -> None:
        """Free the device's memory; nothing happens where it is free already."""
        if self._gone:
            return
        found = {s._cdata: s for s in (t.untyped_storage() for t in self._find() if t.device == self._device)}
        gone = [_Gone(s, s.nbytes(), self._copied(s)) for s in found.values() if s.nbytes() and s.resizable()]
        self._synchronize()  # the copies are whole
        for one in gone:
            one.storage.resize_(0)
        self._gone = {one.storage._cdata: one for one in gone}

    def reload(self) -> None:
        """Allocate the memory again, with the contents that were kept."""
        for one in self._gone.values():
            one.storage.resize_(one.size)
            if one.copy is None:
                _bytes(one.storage).zero_()
            else:
                _bytes(one.storage).copy_(one.copy, non_blocking=True)
        self._synchronize()
        for one in self._gone.values():
            if one.copy is not None:
                self._host.give_back(one.copy)
        self._gone = {}

    @contextmanager
    def read_on_host(self) -> Iterator[None]:
        """Within it, the tensors of ``find`` that are offloaded are their copies on the host, to be read only."""
        with ExitStack() as stack:
            for tensor in self._find() if self._gone else ():
                gone = self._gone.get(tensor.untyped_storage()._cdata)
                if gone is not None and gone.copy is not None:
                    stack.callback(setattr, tensor, "data", tensor.data)
                    flat = gone.copy.view(tensor.dtype)
                    start = flat.storage_offset() + tensor.storage_offset()
                    tensor.data = flat.as_strided(tensor.shape, tensor.stride(), start)
            yield

    def _copied(self, storage: torch.UntypedStorage) -> Tensor | None:
        if not self._keep:
            return None
        return self._host.take(storage.nbytes()).copy_(_bytes(storage), non_blocking=True)

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _bytes(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


class ModelMemory:
    """The memory of one trained model: ``states``, ``scratch`` and ``parameters`` of ``ZeroModel``, and parameters
    of modules ``beside`` it (a reference policy), which are there only where all of it is.
    """

    def __init__(
        self, model: ZeroModel, host: HostBuffers, device: torch.device, beside: Sequence[torch.nn.Module] = ()
    ) -> None:
        self._model, self._device = model, device
        self.states = Offloadable(model.states, host, device)
        self.scratch = Offloadable(model.scratch, host, device, keep=False)
        self.parameters = Offloadable(model.parameters, host, device)
        self.beside = Offloadable(lambda: model.parameters(*beside) if beside else iter(()), host, device)
        self.parts = self.parameters, self.beside, self.states, self.scratch

    def reload(self) -> None:
        """Load everything. Raises RuntimeError where the device has too little memory."""
        for part in self.parts:
            part.reload()

    def keep_parameters(self) -> None:
        """Offload everything but the model's own parameters."""
        if self.parameters.loaded:
            self._model.free_gathered()
        for part in (self.scratch, self.states, self.beside):
            part.offload()
        self._give_up_cache()

    def offload(self) -> None:
        """Offload everything."""
        self.keep_parameters()
        self.parameters.offload()
        self._give_up_cache()

    def _give_up_cache(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    @contextmanager
    def with_parameters(self) -> Iterator[None]:
        """Load the parameters; in the end they are where they were."""
        if self.parameters.loaded:
            yield
            return
        self.parameters.reload()
        try:
            yield
        finally:
            self.offload()


class Residency:
    """Which of ``policy`` and ``critic`` is on a shared device, phase by phase. Without them nothing moves.

    A move raises RuntimeError where the device has too little memory.
    """

    def __init__(
        self, device: torch.device, policy: ModelMemory | None = None, critic: ModelMemory | None = None
    ) -> None:
        self._device, self._policy, self._critic = device, policy, critic
        self._both = [memory for memory in (policy, critic) if memory is not None]
        self.free: dict[str, float] = {}

    @contextmanager
    def critic(self) -> Iterator[None]:
        """Load the critic, and offload it in the end."""
        with self.restoring(critic=True):
            yield
        if self._critic is not None:
            self._critic.offload()
            self._look("critic_left")

    @contextmanager
    def policy(self) -> Iterator[None]:
        """Load the policy, and offload all but its parameters in the end."""
        with self.restoring(critic=False):
            yield
        if self._policy is not None:
            self._policy.keep_parameters()
            self._look("states_left")

    @contextmanager
    def restoring(self, *, critic: bool) -> Iterator[None]:
        """Load the critic, or the policy, to be written to; offload the other: the device may have no room for both."""
        own, other = (self._critic, self._policy) if critic else (self._policy, self._critic)
        if other is not None:
            other.offload()
        if own is not None:
            own.reload()
        yield

    def send(self) -> None:
        """Load the policy's parameters, and offload everything else."""
        if self._critic is not None:
            self._critic.offload()
        if self._policy is not None:
            self._policy.parameters.reload()
            self._policy.keep_parameters()

    def sleep(self) -> None:
        """Offload everything."""
        for memory in self._both:
            memory.offload()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Load the policy's parameters; in the end they are where they were."""
        with nullcontext() if self._policy is None else self._policy.with_parameters():
            yield

    @contextmanager
    def all_readable(self) -> Iterator[None]:
        """Make all states readable, on the device or on the host, and load the parameters."""
        with ExitStack() as stack:
            for memory in self._both:
                stack.enter_context(memory.states.read_on_host())
                stack.enter_context(memory.with_parameters())
            yield

    def pop_metrics(self) -> dict[str, float]:
        """Metrics: free GiB of the device at the moments since the last call."""
        free, self.free = self.free, {}
        return {f"memory/{moment}_free_gib": gib for moment, gib in free.items()}

    def _look(self, moment: str) -> None:
        if (gib := free_gib(self._device, moment)) is not None:
            self.free[moment] = gib


def free_gib(device: torch.device, moment: str) -> float | None:
    """Free GiB of the device, which are also logged; None on a CPU."""
    if device.type != "cuda":
        return None
    free, total = (size / 2**30 for size in torch.cuda.mem_get_info(device))
    print(f"memory: {moment.replace('_', ' ')}: {free:.2f} of {total:.2f} GiB free on {device}", flush=True)
    return float(free)
