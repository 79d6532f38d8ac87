import mmap
import os
import subprocess
import sys
from contextlib import contextmanager
from types import ModuleType

import pytest
import torch

from overlap.core.errors import LearnerError
from overlap.weights import full as weights
from overlap.weights.full import LowRank, full_tensors
from overlap.weights.shm import open_sender


class Tied(torch.nn.Module):
    """A small language model's skeleton: embedding, one layer, a head tied to the embedding."""

    def __init__(self, dtype=torch.bfloat16):
        super().__init__()
        self.embed = torch.nn.Embedding(7, 5, dtype=dtype)
        self.layer = torch.nn.Linear(5, 3, dtype=dtype)
        self.head = torch.nn.Linear(5, 7, bias=False, dtype=dtype)
        self.head.weight = self.embed.weight


def received(info):
    """What another process would read."""
    fd = os.open(info["path"], os.O_RDONLY)
    memory = mmap.mmap(fd, info["size"], access=mmap.ACCESS_COPY)
    os.close(fd)
    found = {}
    for name, dtype, shape, offset in info["tensors"]:
        kind = getattr(torch, dtype)
        count = torch.Size(shape).numel()
        found[name] = torch.frombuffer(memory, dtype=kind, count=count, offset=offset).view(shape)
    return found


@pytest.fixture
def sender():
    sender = open_sender("shm", rank=0)
    yield sender
    sender.close()


def open_fds():
    return sorted(os.listdir("/proc/self/fd"))


def test_weights_are_published_through_memory_in_a_process_that_has_no_engine():
    code = (
        "import sys\n"
        "sys.modules['vllm'] = None\n"
        "import torch, overlap.learner.commands\n"
        "from overlap.weights.full import full_tensors; from overlap.weights.shm import open_sender\n"
        "sender = open_sender('shm', rank=0)\n"
        "print(sender.prepare(full_tensors(torch.nn.Linear(2, 2), 0))['tensors'][0][0])\n"
        "sender.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.returncode) == ("weight\n", 0), done.stderr


@pytest.mark.promise("parity")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_tensor_arrives_as_it_was(sender, dtype):
    module = Tied(dtype)
    tensors = full_tensors(module, 2)
    found = received(sender.prepare(tensors))
    assert list(found) == ["embed.weight", "layer.weight", "layer.bias"]
    for name, parameter in module.named_parameters():
        assert torch.equal(found[name], parameter)
    kind = str(dtype).removeprefix("torch.")
    assert [(m.name, m.dtype, m.shape) for m in tensors.metadata] == [
        (name, kind, tuple(tensor.shape)) for name, tensor in found.items()
    ]


def test_closing_leaves_no_descriptor_and_nothing_in_dev_shm():
    fds, shm = open_fds(), sorted(os.listdir("/dev/shm"))
    sender = open_sender("shm", rank=0)
    info = sender.prepare(full_tensors(Tied(), 1))
    assert sorted(os.listdir("/dev/shm")) == shm
    sender.close()
    sender.close()
    assert open_fds() == fds
    assert not os.path.exists(info["path"])


def test_tensors_that_changed_since_the_last_version_are_refused(sender):
    sender.prepare(full_tensors(Tied(), 1))
    with pytest.raises(LearnerError, match=r"layer\.weight is missing"):
        sender.prepare(full_tensors(torch.nn.ModuleDict({"embed": Tied().embed}), 1))
    with pytest.raises(LearnerError, match=r"came where embed\.weight was sent before"):
        sender.prepare(full_tensors(Tied(torch.float32), 1))


@pytest.fixture
def gathers(monkeypatch):
    """DeepSpeed's gather, in memory: parameters are empty outside it. Holds what was gathered together."""
    calls = []

    @contextmanager
    def gathered(parameters):
        calls.append(len(parameters))
        for p in parameters:
            p.data = p.full
        yield
        for p in parameters:
            p.data = torch.empty(0)

    zero = ModuleType("deepspeed.runtime.zero")
    zero.GatheredParameters = gathered
    monkeypatch.setitem(sys.modules, "deepspeed", ModuleType("deepspeed"))
    monkeypatch.setitem(sys.modules, "deepspeed.runtime.zero", zero)
    return calls


def sharded(module):
    for p in module.parameters():
        p.full, p.ds_shape, p.ds_numel = p.data.clone(), p.shape, p.numel()
        p.data = torch.empty(0)
    return module


def test_under_zero_3_shards_are_gathered_bucket_by_bucket(sender, gathers, monkeypatch):
    monkeypatch.setattr(weights, "BUCKET_BYTES", 80)
    module = sharded(Tied(torch.float32))  # 140, 60 and 12 bytes
    found = received(sender.prepare(full_tensors(module, 3)))
    assert gathers == [1, 2]
    for name, p in module.named_parameters():
        assert torch.equal(found[name], p.full)


def test_an_adapter_is_gathered_with_its_weight_and_comes_in_it(sender, gathers, monkeypatch):
    module = torch.nn.Module()
    module.layer = torch.nn.Module()
    module.layer.base_layer = torch.nn.Linear(4, 6, dtype=torch.float32)
    module.down, module.up = torch.nn.Linear(4, 2, bias=False), torch.nn.Linear(2, 6, bias=False)
    module.last = torch.nn.Linear(4, 6, bias=False)
    adapters = {"layer.weight": LowRank(module.down.weight, module.up.weight, 2.0)}
    sharded(module)
    monkeypatch.setattr(weights, "BUCKET_BYTES", 96 + 32 + 48)  # the first weight with its adapter
    tensors = full_tensors(module, 3, adapters)
    found = received(sender.prepare(tensors))
    assert list(found) == ["layer.weight", "layer.bias", "last.weight"]
    assert gathers == [3, 2]
    base = module.layer.base_layer
    assert torch.equal(
        found["layer.weight"], base.weight.full + 2.0 * (module.up.weight.full @ module.down.weight.full)
    )
    assert torch.equal(found["layer.bias"], base.bias.full)
    assert torch.equal(found["last.weight"], module.last.weight.full)
    assert [(m.name, m.shape) for m in tensors.metadata] == [(name, tuple(t.shape)) for name, t in found.items()]


def test_other_ranks_gather_too_and_send_nothing(gathers):
    sender = open_sender("shm", rank=1)
    assert sender.prepare(full_tensors(sharded(Tied(torch.float32)), 3)) == {}
    assert gathers == [3]
    sender.close()
