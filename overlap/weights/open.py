"""The sending end of the backend that carries the weights; which one does is decided in ``placement``."""

from __future__ import annotations

from overlap.weights.full import Sender
from overlap.weights.shm import ShmSender


def open_sender(
    backend: str, *, rank: int, engine_devices: int = 1, address: str = "127.0.0.1", port: int = 0
) -> Sender:
    """The sending end of ``backend``; nccl meets the engine's devices at ``address`` and ``port`` (0: a free one)."""
    if backend == "shm":
        return ShmSender(rank)
    from overlap.weights.cuda import open_cuda_sender

    return open_cuda_sender(backend, rank=rank, engine_devices=engine_devices, address=address, port=port)
