"""The sender that needs NCCL, with a double of vLLM's trainer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from vllm.distributed.weight_transfer import nccl_engine

from overlap.weights import nccl
from overlap.weights.full import FullTensors, full_tensors
from overlap.weights.nccl import NcclSender

pytestmark = pytest.mark.e2e  # vLLM is imported, which takes as long as a thousand tests


def module():
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(4, 4, bias=number == 2) for number in range(4)))  # 64 bytes, 16


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

    monkeypatch.setattr(nccl, "get_open_port", lambda: next(ports))
    monkeypatch.setattr(nccl.WeightTransferTrainerFactory, "trainer_init", init)
    return made


def test_a_group_that_is_met_once_serves_every_version(trainers):
    sender, infos, versions = NcclSender(0, 2, "127.0.0.1"), [], [full_tensors(module(), 2) for _ in range(3)]
    for tensors in versions:
        infos.append(sender.prepare(tensors))
        sender.transmit()
        sender.retire()
    assert [info["init"]["master_port"] for info in infos] == [5000] * 3
    assert [one.tensors for one in trainers.all] == [versions]
    sender.close()
    sender.close()
    assert [one.ended for one in trainers.all] == [1]


def test_after_a_broadcast_that_failed_another_group_is_met(trainers):
    trainers.failures.append("link down")
    sender = NcclSender(0, 2, "127.0.0.1")
    sender.prepare(full_tensors(module(), 2))
    with pytest.raises(RuntimeError, match="link down"):
        sender.transmit()
    assert trainers.all[0].ended == 1  # it holds up nobody who still waits in it
    sender.retire(loaded=False)
    again = sender.prepare(full_tensors(module(), 2))
    sender.transmit()
    assert [one.meeting.master_port for one in trainers.all] == [5000, 5001]
    assert again["init"]["master_port"] == 5001
    assert [one.ended for one in trainers.all] == [1, 0]


@pytest.mark.parametrize("rank", [1, 2, 7])
def test_of_more_than_two_ranks_those_behind_the_first_gather_and_join_no_group(rank, monkeypatch):
    """With vLLM's own trainer: its group has rank 0 and the engine's devices, whatever number another rank has."""

    class Gathers(FullTensors):
        passes = 0

        def __iter__(self):
            Gathers.passes += 1
            return super().__iter__()

    def joined(*_):
        raise AssertionError("it joined a group")

    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", joined)
    sender, whole = NcclSender(rank, 2, "127.0.0.1"), module()
    for _ in range(2):
        assert sender.prepare(Gathers(list(whole.named_parameters()), 2)) == {}
        sender.transmit()
        sender.retire()
    assert Gathers.passes == 2
    sender.close()


def test_after_an_engine_that_did_not_load_another_group_is_met(trainers):
    sender = NcclSender(0, 2, "127.0.0.1")
    for port, loaded in ((5000, False), (5001, True), (5001, True)):
        info = sender.prepare(full_tensors(module(), 2))
        assert info["init"]["master_port"] == port
        sender.transmit()
        sender.retire(loaded=loaded)
    assert [len(one.tensors) for one in trainers.all] == [1, 2]
