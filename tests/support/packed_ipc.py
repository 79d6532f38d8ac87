"""A stand-in for vLLM's ``packed_tensor`` where vLLM is missing: the producer that ``overlap.weights.ipc`` fills its
buffers by, and what an engine's worker does with them. ``_ipc.py`` puts it where vLLM's would be.

The contract: one buffer and one export for a pass; a chunk is whole when it is yielded, and is overwritten when the
next is asked for; a consumer opens an export once, copies what it reads, and closes it in the end.

On a CPU the buffer is a file that both map, and what asks for CUDA is put aside.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from overlap.weights import ipc
from overlap.weights.full import FullTensors

CUDA = torch.cuda.is_available()
CHUNK = "GPU_CHECK_CHUNK_BYTES"
"""Environment variable: a smaller buffer than usual, so that a small policy takes several chunks."""
if not CUDA:
    ipc.Device.uuid = lambda self: "a CPU"  # type: ignore[method-assign]
    ipc.Device.collect = lambda self: None  # type: ignore[method-assign]
if CHUNK in os.environ:
    ipc.CHUNK_BYTES = int(os.environ[CHUNK])


@dataclass
class PackedIpcChunk:
    """What one filling holds."""

    ipc_handle: dict[str, Any]
    names: list[str] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)
    dtype_names: list[str] = field(default_factory=list)
    tensor_sizes: list[int] = field(default_factory=list)


def packed_ipc_producer(
    iterator: Iterator[tuple[str, Any]],
    gpu_uuid: str,
    post_iter_func: Callable[[tuple[str, Any]], Any],
    buffer_size_bytes: int,
) -> Iterator[PackedIpcChunk]:
    """Fill a buffer with as many tensors as it takes, again and again."""
    buffer, export = _export(buffer_size_bytes)
    chunk, used = PackedIpcChunk({gpu_uuid: export}), 0
    for name, tensor in iterator:
        flat = post_iter_func((name, tensor)).contiguous().view(-1).view(torch.uint8)
        if used and used + flat.numel() > buffer_size_bytes:
            _drain()
            yield chunk
            chunk, used = PackedIpcChunk({gpu_uuid: export}), 0
        buffer[used : used + flat.numel()].copy_(flat)
        chunk.names.append(name)
        chunk.shapes.append(list(tensor.shape))
        chunk.dtype_names.append(str(tensor.dtype).removeprefix("torch."))
        chunk.tensor_sizes.append(flat.numel())
        used += flat.numel()
    if used:
        _drain()
        yield chunk


def _export(size: int) -> tuple[Any, Any]:
    if CUDA:
        from torch.multiprocessing.reductions import reduce_tensor

        buffer = torch.empty(size, dtype=torch.uint8, device="cuda")
        return buffer, reduce_tensor(buffer)[1]
    fd, path = tempfile.mkstemp(prefix="gpu-check-buffer-")
    os.close(fd)
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8), (path, size)


def _drain() -> None:
    if CUDA:
        torch.cuda.current_stream().synchronize()


def settle() -> None:
    """Give back what this process no longer uses of the device's memory."""
    if CUDA:
        torch.cuda.empty_cache()


class Importer:
    """An export that is open: one at a time, as vLLM's workers have it."""

    def __init__(self) -> None:
        self._key: Any = None
        self._buffer: Any = None

    def open(self, export: tuple[Any, ...]) -> Any:
        """The buffer [bytes], uint8, of this process's own device."""
        if self._key != export:
            self.close()
            self._key, self._buffer = export, _import(export)
        return self._buffer

    def close(self) -> None:
        """Let it go, once for all chunks that came through it."""
        self._key = self._buffer = None


def _import(export: tuple[Any, ...]) -> Any:
    if CUDA:
        from torch.multiprocessing.reductions import rebuild_cuda_tensor

        given = list(export)
        given[6] = torch.cuda.current_device()  # as this process counts them
        return rebuild_cuda_tensor(*given)
    path, size = export
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)


def pass_alone(numbers: int, passes: int, *, read: bool) -> tuple[list[int], int, int]:
    """Free bytes of the device after each of so many passes that nobody reads over two bfloat16 tensors; chunks of one
    pass, and bytes of its buffer. A CPU has no such figures.
    """
    device = "cuda" if CUDA else "cpu"
    tensors = [torch.zeros(numbers, dtype=torch.bfloat16, device=device) for _ in range(2)]
    named = FullTensors([(str(number), tensor) for number, tensor in enumerate(tensors)], 0)
    sender, free, chunks = ipc.IpcSender(0, ipc.Device(), read=read), list[int](), 0
    for _ in range(passes):
        sender.prepare(named)
        chunks = 0
        while sender.chunk(not chunks) is not None:
            chunks += 1
        sender.retire()
        if CUDA:
            free.append(torch.cuda.mem_get_info()[0])
    return free, chunks, min(ipc.CHUNK_BYTES, 2 * tensors[0].nbytes)
