"""A learner rank on a CPU that offloads as ranks do beside an engine on the same GPU: ``python -m sleepy_rank FD``."""

import gc
import sys

import torch

from overlap.learner import rank
from overlap.process.process_tree import leave


def prepare():
    """Storages are offloaded on a CPU, too; and a rank tells what it still holds."""
    from overlap.learner import commands

    made = commands.Commands.__init__

    def init(self, *given):
        made(self, *given)
        self._residency = self._trainer.residency = self._trainer.residency_of()

    commands.Commands.__init__ = init
    commands.Commands.held = held
    commands.Commands.digest = digest
    commands.Commands.all_here = all_here


def all_here(self):
    for memory in (self._residency._policy, self._residency._critic):
        if memory is not None:
            memory.reload()


def held(self):
    """Bytes of the storages of all tensors but the copies of the host."""
    gc.collect()
    residency = self._residency
    parts = [part for memory in (residency._policy, residency._critic) if memory is not None for part in memory.parts]
    copies = [one.copy for part in parts for one in part._gone.values() if one.copy is not None]
    copies += [buffer for free in residency._policy.states._host._free.values() for buffer in free]
    ours = {copy.untyped_storage()._cdata for copy in copies}
    storages = {
        t.untyped_storage()._cdata: t.untyped_storage().nbytes()
        for t in gc.get_objects()
        if issubclass(type(t), torch.Tensor) and t.device.type == "cpu"
    }
    return sum(size for cdata, size in storages.items() if cdata not in ours)


def digest(self):
    """Of all states, which are there: moments, float32 weights and parameters."""
    import hashlib

    made = hashlib.sha256()
    for memory in (self._residency._policy, self._residency._critic):
        for part in (memory.states, memory.parameters, memory.beside) if memory is not None else ():
            assert part.loaded
            for tensor in part._find():
                copy = tensor.detach().clone()  # what numpy shares can give up no memory
                made.update(copy.view(-1).view(torch.uint8).numpy().tobytes())
    return made.hexdigest()


if __name__ == "__main__":
    real = rank._start

    def begin(spec):
        prepare()
        return real(spec)

    rank._start = begin
    code = rank.main()
    sys.stdout.flush()
    leave(code)
