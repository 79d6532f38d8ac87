"""The engine's side of a transfer: of weights, of one that failed, and of an adapter, which is put in place whole."""

from __future__ import annotations

import base64
import pickle
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")
import torch
from vllm.lora.lora_weights import PackedLoRALayerWeights

from overlap.generate import receive


@pytest.fixture
def finished(monkeypatch):
    """Models whose layers were closed after a load."""
    found = []
    monkeypatch.setattr(receive, "finalize_layerwise_reload", lambda model, config: found.append(model))
    return found


def made(kind, model="model"):
    """An engine of vLLM without its worker."""
    engine = object.__new__(kind)
    engine.model = engine._default_model = model
    engine.model_config = engine._default_model_config = "config"
    engine.device = torch.device("cpu")
    engine._packed_importer = SimpleNamespace(close=lambda: model.calls.append("closed"))
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


NAMES = ("q_proj", "k_proj", "o_proj")


class Manager:
    """Of vLLM's, what has to do with a place: queries and keys are one layer there."""

    def __init__(self) -> None:
        self.modules: dict[str, Any] = {"model.qk_proj": None, "model.o_proj": None}
        self.lora_config = SimpleNamespace(lora_dtype=torch.float32)
        self.calls: list[str] = []
        self.placed: Any = None

    def remove_adapter(self, number: int) -> None:
        self.calls.append("remove")
        self.placed = None

    def add_adapter(self, lora: Any) -> None:
        parts = [lora.loras.pop(f"model.{name}", None) for name in NAMES[:2]]
        if any(parts):
            lora.loras["model.qk_proj"] = PackedLoRALayerWeights.pack(parts)
        for one in lora.loras.values():
            one.optimize()
        self.placed = lora

    def activate_adapter(self, number: int) -> None:
        self.calls.append("activate")


def tensors(*names: str) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    shapes = {"A": (2, 6), "B": (4, 2)}
    return {
        f"base_model.model.model.{name}.lora_{half}.weight": torch.randn(shape, generator=made)
        for name in names
        for half, shape in shapes.items()
    }


@pytest.mark.parametrize("kind", [receive.ShmEngine, receive.IpcEngine, receive.NcclEngine])
def test_an_adapter_is_put_in_its_place_when_all_of_it_has_come(kind: Any) -> None:
    manager = Manager()
    taking = made(kind, SimpleNamespace(lora_manager=manager, calls=manager.calls))
    sent = tensors(*NAMES)
    taking.start_weight_update()
    for pair in sent.items():  # in chunks, whose memory is used again
        copy = pair[1].clone()
        taking.model.load_weights([(pair[0], copy)])
        copy.zero_()
    assert manager.calls == []
    taking.finish_weight_update()
    closes = ["closed"] if kind is receive.IpcEngine else []
    assert manager.calls == ["remove", "activate", *closes]
    placed = manager.placed.loras
    up, down = (sent[f"base_model.model.model.o_proj.lora_{half}.weight"] for half in "BA")
    assert torch.equal(placed["model.o_proj"].lora_b @ placed["model.o_proj"].lora_a, 2 * (up @ down))
    assert [len(half) for half in (placed["model.qk_proj"].lora_a, placed["model.qk_proj"].lora_b)] == [2, 2]


@pytest.mark.parametrize(
    ("names", "odd"),
    [
        (("q_proj", "o_proj"), r"1 layers .*\(model\.qk_proj"),
        (("q_proj", "k_proj"), r"1 layers .*\(model\.o_proj"),
        ((*NAMES, "v_proj"), r"1 layers .*\(model\.v_proj"),
    ],
)
def test_one_that_lacks_a_layer_or_has_one_too_many_is_refused_and_none_is_left(
    names: tuple[str, ...], odd: str
) -> None:
    manager = Manager()
    intake = receive.AdapterIntake(SimpleNamespace(lora_manager=manager))
    intake.load_weights(tensors(*names).items())
    with pytest.raises(RuntimeError, match=odd):
        intake.place()
    assert manager.calls == ["remove", "remove"]
    assert manager.placed is None


def test_a_model_without_a_place_for_adapters_receives_weights() -> None:
    plain = made(receive.ShmEngine, model := SimpleNamespace())
    plain.start_weight_update()
    plain.finish_weight_update()
    assert plain.model is model


def test_a_worker_keeps_its_adapter_and_one_that_drops_it_otherwise_is_refused() -> None:
    worker = receive.WorkerExtension()
    places = SimpleNamespace(lora_manager=None)
    worker.model_runner = SimpleNamespace(reset_lora_state=lambda: pytest.fail("dropped"), get_model=lambda: places)
    worker.overlap_keep_adapter()
    worker.model_runner.reset_lora_state()
    nowhere = SimpleNamespace(reset_lora_state=lambda: None, get_model=SimpleNamespace)
    for worker.model_runner in (SimpleNamespace(), nowhere):
        with pytest.raises(RuntimeError, match="SimpleNamespace keeps adapters in a way that is not known here"):
            worker.overlap_keep_adapter()
