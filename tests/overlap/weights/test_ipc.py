"""The sender that needs CUDA's memory handles, with a double of what it does with a GPU."""

from __future__ import annotations

import base64
import pickle
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from overlap.config.fields import Config
from overlap.config.learn import LearnConfig
from overlap.config.rollout import RolloutConfig
from overlap.core.errors import LearnerError
from overlap.placement.devices import Devices
from overlap.placement.seats import place as placed
from overlap.weights import ipc
from overlap.weights.full import full_tensors
from overlap.weights.ipc import IpcSender
from overlap.weights.shm import open_sender


class Gpu:
    """Its memory is a list of buffers, each filled by the algorithm of vLLM's packed producer. What is let go is freed
    when it is collected and no engine has it open.
    """

    def __init__(self, uuid: str = "GPU-0") -> None:
        self.name, self.buffers = uuid, []
        self.let_go, self.open = set[int](), set[int]()

    def uuid(self) -> str:
        return self.name

    def fill(self, tensors, size):
        buffer = torch.zeros(size, dtype=torch.uint8)
        place = len(self.buffers)
        self.buffers.append(buffer)
        try:
            held: list[Any] = []
            used = 0
            for name, tensor in tensors:
                flat = tensor.contiguous().view(-1).view(torch.uint8)
                assert flat.numel() <= size
                if held and used + flat.numel() > size:
                    yield self._chunk(held, place)
                    held, used = [], 0
                buffer[used : used + flat.numel()] = flat
                held.append((name, tensor))
                used += flat.numel()
            if held:
                yield self._chunk(held, place)
        finally:
            self.let_go.add(place)

    def _chunk(self, held, place):
        return SimpleNamespace(
            names=[name for name, _ in held],
            shapes=[list(tensor.shape) for _, tensor in held],
            dtype_names=[str(tensor.dtype).split(".")[-1] for _, tensor in held],
            tensor_sizes=[tensor.numel() * tensor.element_size() for _, tensor in held],
            ipc_handle={self.name: place},
        )

    def collect(self) -> None:
        for place in self.let_go - self.open:
            self.buffers[place] = None

    def commit(self) -> None:
        """The engine has loaded all, and closes what it had opened."""
        self.open.clear()

    def read(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """What an engine on this GPU finds: copies, for the buffer is filled again."""
        handles = pickle.loads(base64.b64decode(chunk["handles"]))
        self.open.add(handles[self.name])
        start, found = 0, {}
        rows = zip(chunk["names"], chunk["shapes"], chunk["dtype_names"], chunk["tensor_sizes"], strict=True)
        for name, shape, dtype, size in rows:
            flat = self.buffers[handles[self.name]][start : start + size].clone()
            found[name] = flat.view(getattr(torch, dtype)).view(shape)
            start += size
        return found

    @property
    def held(self) -> int:
        return sum(buffer.numel() for buffer in self.buffers if buffer is not None)


def module():
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(4, 4, bias=number == 2) for number in range(4)))  # 64 bytes, 16


def sent(sender, gpu):
    """All that an engine finds, and the most bytes that a GPU held for it."""
    found, most = {}, 0
    first = True
    while (chunk := sender.chunk(first)) is not None:
        found |= gpu.read(chunk)
        most, first = max(most, gpu.held), False
    return found, most


def equal(found, model) -> bool:
    wanted = dict(model.named_parameters())
    return found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.fixture
def sender_to(monkeypatch):
    """Model, GPU and sender, whose buffer has 64 bytes."""
    monkeypatch.setattr(ipc, "CHUNK_BYTES", 64)
    gpu = Gpu()
    return module(), gpu, IpcSender(0, gpu)


@pytest.mark.parametrize(("limit", "size"), [(130, 130), (10, 64), (10**9, 272)])
def test_the_whole_policy_goes_through_one_buffer_no_smaller_than_a_tensor_and_no_larger_than_the_policy(
    monkeypatch, sender_to, limit, size
):
    monkeypatch.setattr(ipc, "CHUNK_BYTES", limit)
    model, gpu, sender = sender_to
    for version in range(2):
        assert sender.prepare(full_tensors(model, 2)) == {"init": {"packed": True}}
        sender.chunk(True)  # of another engine, which has gone: all begins anew
        found, most = sent(sender, gpu)
        assert equal(found, model)
        assert most == size
        gpu.commit()
        sender.retire()
        assert gpu.held == 0
        with torch.no_grad():
            model[0].weight.fill_(float(version))


def test_a_transfer_that_was_broken_off_leaves_nothing_to_the_next(sender_to):
    model, gpu, sender = sender_to
    sender.prepare(full_tensors(model, 2))
    assert sender.chunk(True) is not None
    sender.prepare(full_tensors(model, 2))  # nobody has retired it
    assert gpu.held == 0
    assert sender.chunk(True) is not None
    sender.retire(loaded=False)
    assert gpu.held == 0
    with pytest.raises(LearnerError, match="nothing was prepared"):
        sender.chunk(False)
    sender.prepare(full_tensors(model, 2))
    assert equal(sent(sender, gpu)[0], model)


def test_a_pass_that_is_broken_off_gives_up_what_it_had_gathered(sender_to):
    model, _, sender = sender_to
    ended = []

    class Gathered:
        metadata = full_tensors(model, 2).metadata

        def __iter__(self):
            try:
                yield from full_tensors(model, 2)
            finally:
                ended.append(True)

    sender.prepare(Gathered())
    sender.chunk(True)
    assert ended == []
    sender.close()
    assert ended == [True]


def test_a_chunk_has_the_handles_of_all_gpus_and_serves_every_engine(monkeypatch):
    model, gpus = module(), [Gpu("GPU-0"), Gpu("GPU-1")]
    senders = [IpcSender(rank, gpu) for rank, gpu in enumerate(gpus)]

    def gather(found, own):
        found[0] = own
        found[1] = {"GPU-1": 0}

    monkeypatch.setattr(ipc.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(ipc.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(ipc.dist, "all_gather_object", gather)
    for sender in senders:
        sender.prepare(full_tensors(model, 2))
    told = [sender.chunk(True) for sender in senders]
    assert told[1] == {}
    assert equal(gpus[0].read(told[0]), model)
    assert equal(gpus[1].read(told[0]), model)
    assert [sender.chunk(False) for sender in senders] == [None, None]


def test_a_rank_whose_gpu_has_no_engine_exports_nothing_and_gathers_with_the_others():
    """torch frees an exported buffer when it was opened and closed: one that nobody opens is there for good."""
    model, gpu = module(), Gpu()
    silent = IpcSender(1, gpu, read=False)
    for limit, chunks in ((64, 5), (130, 3), (10**9, 1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ipc, "CHUNK_BYTES", limit)
            reader = IpcSender(0, Gpu("GPU-1"))
            for sender in (reader, silent):
                sender.prepare(full_tensors(model, 2))
            took = [(reader.chunk(not n) is None, silent.chunk(not n) is None) for n in range(chunks + 1)]
        assert took == [(False, False)] * chunks + [(True, True)]
    assert gpu.buffers == []


def test_where_only_the_first_rank_is_unread_it_still_says_what_the_chunks_hold(monkeypatch):
    monkeypatch.setattr(ipc, "CHUNK_BYTES", 64)
    model, told = module(), []
    for sender in (IpcSender(0, Gpu()), IpcSender(0, Gpu(), read=False)):
        sender.prepare(full_tensors(model, 2))
        told.append([chunk for n in range(5) if (chunk := sender.chunk(not n)) is not None])
    for read, unread in zip(*told, strict=True):
        assert pickle.loads(base64.b64decode(unread.pop("handles"))) == {}
        assert unread == {name: value for name, value in read.items() if name != "handles"}


@pytest.mark.parametrize(("replicas", "parallel", "fed"), [(1, 1, [0]), (1, 2, [0, 1]), (3, 1, [0, 1, 2])])
def test_the_ranks_that_an_engine_reads_from_are_those_on_its_gpus(replicas, parallel, fed):
    rollout = RolloutConfig(replicas=replicas, tensor_parallel=parallel, max_staleness=0)
    placement = placed(Config(rollout=rollout, learn=LearnConfig(ranks=4)), Devices.gpus(4))
    assert [seat.rank for seat in placement.ranks if placement.feeds(seat)] == fed


def test_buffers_are_filled_by_vllms_producer_and_only_then_is_it_imported(monkeypatch):
    """So a learner that never sends starts without vLLM."""
    package = ModuleType("vllm.distributed.weight_transfer.packed_tensor")
    package.packed_ipc_producer = lambda tensors, uuid, pick, size: iter([(uuid, size, *map(pick, tensors))])
    for name in ("vllm", "vllm.distributed", "vllm.distributed.weight_transfer"):
        monkeypatch.setitem(sys.modules, name, None)
    sender = open_sender("ipc", rank=0)
    monkeypatch.setitem(sys.modules, package.__name__, package)
    device = sender._device
    monkeypatch.setattr(device, "uuid", lambda: "GPU-0", raising=False)
    assert next(device.fill(iter([("a", 1), ("b", 2)]), 64)) == ("GPU-0", 64, 1, 2)
