"""DeepSpeed's backend where only a GPU would show a difference, by doubles of the device."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from overlap.config.fields import Config
from overlap.learner.zero import backend
from overlap.learner.zero.checkpoints import _put


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_what_counts_the_steps_is_a_copy_beside_the_weights_that_were_loaded(device: str) -> None:
    """A fused optimizer takes no other; what was read of the old shards is in the host's memory."""
    weights, step, inner = torch.zeros(4, device=device), torch.tensor(3.0), SimpleNamespace(state={})
    _put(SimpleNamespace(optimizer=inner), weights, dict.fromkeys(("fp32", "exp_avg", "exp_avg_sq"), weights), step)
    step += 1
    counted = inner.state[weights]["step"]
    assert counted.device.type == device
    assert device == "meta" or counted.item() == 3.0


class _Ops:
    """DeepSpeed's table of what it could build, which is made when it is looked at, by trying."""

    def __init__(self) -> None:
        self.tried = 0

    @property
    def __compatible_ops__(self) -> dict[str, bool]:
        self.tried += 1
        return {}


@pytest.mark.parametrize(("device", "tried"), [("cpu", 1), ("cuda", 0)])
def test_only_on_a_cpu_is_an_op_refused_which_has_all_of_them_tried(
    monkeypatch: pytest.MonkeyPatch, device: str, tried: int
) -> None:
    ops, accelerator = _Ops(), SimpleNamespace(get_accelerator=SimpleNamespace)
    library = SimpleNamespace(ops=ops, accelerator=accelerator, init_distributed=lambda **_: None)
    monkeypatch.setitem(sys.modules, "deepspeed", library)
    monkeypatch.setattr(backend.dist, "get_backend", lambda: "gloo")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    backend.ZeroBackend(Config()).join(torch.device(device))
    assert ops.tried == tried


def test_free_memory_is_that_of_the_ranks_own_gpu_however_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed's own reads numbers out of CUDA_VISIBLE_DEVICES, and ZeRO 1 and 2 ask for it at their start."""
    cuda_accelerator = pytest.importorskip("deepspeed.accelerator.cuda_accelerator")
    known = cuda_accelerator.CUDA_Accelerator()
    import deepspeed

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8f6bd9d7")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setattr(deepspeed.accelerator, "get_accelerator", lambda: known)
    monkeypatch.setattr(deepspeed, "init_distributed", lambda **_: None)
    monkeypatch.setattr(backend.dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (7, 80))
    backend.ZeroBackend(Config()).join(torch.device("cuda"))
    assert known.available_memory() == 7
