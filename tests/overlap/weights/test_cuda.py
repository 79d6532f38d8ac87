"""Senders that need CUDA, with doubles of what they do with it."""

from __future__ import annotations

import base64
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from overlap.errors import LearnerError
from overlap.weights import cuda, full_tensors
from overlap.weights.cuda import IpcSender, NcclSender, open_cuda_sender

pytestmark = pytest.mark.e2e  # vLLM is imported, which takes as long as a thousand tests


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
def ipc(monkeypatch):
    """Model, GPU and sender, whose buffer has 64 bytes."""
    monkeypatch.setattr(cuda, "CHUNK_BYTES", 64)
    gpu = Gpu()
    return module(), gpu, IpcSender(0, gpu)


@pytest.mark.parametrize(("limit", "size"), [(130, 130), (10, 64), (10**9, 272)])
def test_the_whole_policy_goes_through_one_buffer_no_smaller_than_a_tensor_and_no_larger_than_the_policy(
    monkeypatch, ipc, limit, size
):
    monkeypatch.setattr(cuda, "CHUNK_BYTES", limit)
    model, gpu, sender = ipc
    for version in range(2):
        assert sender.prepare(full_tensors(model, 2), version) == {"init": {"packed": True}}
        sender.chunk(True)  # of another engine, which has gone: all begins anew
        found, most = sent(sender, gpu)
        assert equal(found, model)
        assert most == size
        gpu.commit()
        sender.retire({})
        assert gpu.held == 0
        with torch.no_grad():
            model[0].weight.fill_(float(version))


def test_a_transfer_that_was_broken_off_leaves_nothing_to_the_next(ipc):
    model, gpu, sender = ipc
    sender.prepare(full_tensors(model, 2), 1)
    assert sender.chunk(True) is not None
    sender.prepare(full_tensors(model, 2), 1)  # nobody has retired it
    assert gpu.held == 0
    assert sender.chunk(True) is not None
    sender.retire({}, loaded=False)
    assert gpu.held == 0
    with pytest.raises(LearnerError, match="nothing was prepared"):
        sender.chunk(False)
    sender.prepare(full_tensors(model, 2), 2)
    assert equal(sent(sender, gpu)[0], model)


def test_what_has_been_sent_to_its_end_is_let_go_at_once(ipc):
    model, gpu, sender = ipc
    sender.prepare(full_tensors(model, 2), 1)
    while sender.chunk(not gpu.buffers) is not None:
        assert gpu.held == 64
    assert gpu.held == 0


def test_a_pass_that_is_broken_off_gives_up_what_it_had_gathered(ipc):
    model, _, sender = ipc
    ended = []

    class Gathered:
        metadata = full_tensors(model, 2).metadata

        def __iter__(self):
            try:
                yield from full_tensors(model, 2)
            finally:
                ended.append(True)

    sender.prepare(Gathered(), 1)
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

    monkeypatch.setattr(cuda.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(cuda.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(cuda.dist, "all_gather_object", gather)
    for sender in senders:
        sender.prepare(full_tensors(model, 2), 1)
    told = [sender.chunk(True) for sender in senders]
    assert told[1] == {}
    assert equal(gpus[0].read(told[0]), model)
    assert equal(gpus[1].read(told[0]), model)
    assert [sender.chunk(False) for sender in senders] == [None, None]


def test_a_backend_that_is_not_known_is_refused():
    with pytest.raises(LearnerError, match="'pigeon' is not known"):
        open_cuda_sender("pigeon", rank=0, engine_devices=1, address="", port=0)


class Trainer:
    """vLLM's trainer engine; fails at what it is told to."""

    def __init__(self, meeting, source, fails=""):
        self.meeting, self.source, self.fails, self.ended = meeting, source, fails, 0
        self.tensors = []

    def send_weights(self):
        if self.fails:
            raise RuntimeError(self.fails)
        self.tensors.append(self.source._tensors)

    def shutdown(self):
        self.ended += 1


@pytest.fixture
def trainers(monkeypatch):
    """All that were made; each that is made fails with what stands first in ``failures``."""
    made, ports = SimpleNamespace(all=[], failures=[]), iter(range(5000, 6000))

    def init(meeting, *, client, source):
        made.all.append(Trainer(meeting, source, made.failures.pop(0) if made.failures else ""))
        return made.all[-1]

    monkeypatch.setattr(cuda, "get_open_port", lambda: next(ports))
    monkeypatch.setattr(cuda.WeightTransferTrainerFactory, "trainer_init", init)
    return made


def test_a_group_that_is_met_once_serves_every_version(trainers):
    sender, infos, versions = NcclSender(0, 2, "127.0.0.1", 0), [], [full_tensors(module(), 2) for _ in range(3)]
    for version, tensors in enumerate(versions):
        infos.append(sender.prepare(tensors, version))
        sender.transmit(infos[-1])
        sender.retire(infos[-1])
    assert [info["init"]["master_port"] for info in infos] == [5000] * 3
    assert [one.tensors for one in trainers.all] == [versions]
    sender.close()
    sender.close()
    assert [one.ended for one in trainers.all] == [1]


def test_after_a_broadcast_that_failed_another_group_is_met(trainers):
    trainers.failures.append("link down")
    sender = NcclSender(0, 2, "127.0.0.1", 0)
    first = sender.prepare(full_tensors(module(), 2), 1)
    with pytest.raises(RuntimeError, match="link down"):
        sender.transmit(first)
    assert trainers.all[0].ended == 1  # it holds up nobody who still waits in it
    sender.retire(first, loaded=False)
    again = sender.prepare(full_tensors(module(), 2), 1)
    sender.transmit(again)
    assert [one.meeting.master_port for one in trainers.all] == [5000, 5001]
    assert again["init"]["master_port"] == 5001
    assert [one.ended for one in trainers.all] == [1, 0]


def test_after_an_engine_that_did_not_load_another_group_is_met(trainers):
    sender = NcclSender(0, 2, "127.0.0.1", 0)
    for port, loaded in ((5000, False), (5001, True), (5001, True)):
        info = sender.prepare(full_tensors(module(), 2), 1)
        assert info["init"]["master_port"] == port
        sender.transmit(info)
        sender.retire(info, loaded=loaded)
    assert [len(one.tensors) for one in trainers.all] == [1, 2]
