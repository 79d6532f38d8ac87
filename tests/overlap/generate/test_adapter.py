"""An adapter in a worker of the engine: taken whole, put in its place, and multiplied by as vLLM does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")
import torch
from vllm.lora.lora_weights import PackedLoRALayerWeights

from overlap.generate import receive

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


def engine(kind: Any, model: Any) -> Any:
    """Of vLLM, without its worker."""
    made = object.__new__(kind)
    made.model = made._default_model = model
    made.model_config = made._default_model_config = "config"
    made.device = torch.device("cpu")
    made._packed_importer = SimpleNamespace(close=lambda: model.calls.append("closed"))
    return made


@pytest.mark.parametrize("kind", [receive.ShmEngine, receive.IpcEngine, receive.NcclEngine])
def test_an_adapter_is_put_in_its_place_when_all_of_it_has_come(kind: Any) -> None:
    manager = Manager()
    taking = engine(kind, SimpleNamespace(lora_manager=manager, calls=manager.calls))
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
    plain = engine(receive.ShmEngine, model := SimpleNamespace())
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
