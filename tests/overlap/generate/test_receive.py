"""The engine's side of a transfer that failed: the next one begins as the first did."""

from __future__ import annotations

import base64
import pickle
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")
import torch

from overlap.generate import receive


@pytest.fixture
def finished(monkeypatch):
    """Models whose layers were closed after a load."""
    found = []
    monkeypatch.setattr(receive, "finalize_layerwise_reload", lambda model, config: found.append(model))
    return found


def made(kind):
    """An engine of vLLM without its worker."""
    engine = object.__new__(kind)
    engine.model, engine.model_config = "model", "config"
    return engine


def test_a_worker_whose_update_was_broken_off_begins_another(finished, monkeypatch):
    done = []
    engine = SimpleNamespace(
        reset_weight_update_target=lambda: done.append("target"), abandon=lambda: done.append("ours")
    )
    worker = receive.WorkerExtension()
    worker.weight_transfer_engine, worker._weight_update_active, worker.vllm_config = engine, True, None
    monkeypatch.setattr(receive, "set_current_vllm_config", nullcontext)
    worker.overlap_abandon_weights()
    assert done == ["target", "ours"]
    assert worker._weight_update_active is False


@pytest.mark.parametrize(
    ("loaded", "missing"), [({"proj.weight", "embed"}, ""), ({"embed"}, "1 weights were not sent, the first is proj")]
)
def test_what_quantization_makes_of_a_weight_is_not_waited_for(loaded, missing, finished, monkeypatch):
    """Nor the head, which has a name of its own only while a load goes on, where it is the embedding."""
    made_of = ["proj.weight", "proj.weight_scale", "embed"]
    engine = made(receive.ShmEngine)
    engine.model = SimpleNamespace(
        named_parameters=lambda: [(name, None) for name in made_of],
        load_weights=lambda tensors: loaded,
        modules=lambda: [],
    )
    engine.device = torch.device("cpu")
    monkeypatch.setattr(receive, "_map", lambda update: b"")
    names = ["proj.weight", "embed", "head"]
    monkeypatch.setattr(receive, "initialize_layerwise_reload", lambda model: made_of.__setitem__(slice(None), names))
    update = receive.ShmUpdate("", 0, [])
    if missing:
        with pytest.raises(RuntimeError, match=missing):
            engine.receive_weights(update)
    else:
        engine.receive_weights(update)
    assert finished == [engine.model]


def test_an_ipc_engine_reads_the_handles_of_a_chunk():
    engine = made(receive.IpcEngine)
    handles = base64.b64encode(pickle.dumps({"GPU-0": (1, 2)})).decode()
    rows = {"names": ["a"], "dtype_names": ["bfloat16"], "shapes": [[2, 3]], "tensor_sizes": [12]}
    info = engine.parse_update_info(rows | {"handles": handles})
    assert info.ipc_handles == {"GPU-0": (1, 2)}
    assert info.tensor_sizes == [12]


def test_an_nccl_engine_leaves_one_group_before_it_joins_another(finished, monkeypatch):
    engine, seen = made(receive.NcclEngine), []
    engine.model_update_group = SimpleNamespace(destroy=lambda: seen.append("left"))

    def join(self, info):
        assert self.model_update_group is None
        seen.append(f"joined {info}")

    monkeypatch.setattr(receive.NCCLWeightTransferEngine, "init_transfer_engine", join)
    engine.init_transfer_engine("there")
    assert seen == ["left", "joined there"]
    engine.model_update_group = SimpleNamespace(destroy=lambda: seen.append("left again"))
    engine.abandon()
    assert (seen[-1], finished, engine.model_update_group) == ("left again", ["model"], None)
