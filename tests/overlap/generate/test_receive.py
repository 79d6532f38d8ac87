"""The engine's side of a transfer that failed: the next one begins as the first did."""

from __future__ import annotations

import base64
import logging
import pickle
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")
import torch
from vllm.platforms import current_platform

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


def test_drafts_are_judged_at_the_temperature_of_their_request():
    """vLLM's own fills a copy on a CPU without Triton, and leaves what it returns as the memory was."""
    from vllm.v1.sample import rejection_sampler

    temperatures, ends = torch.tensor([0.7, 0.0, 1.3]), torch.tensor([2, 2, 5], dtype=torch.int32)
    assert rejection_sampler.expand_batch_to_tokens is receive.expand_to_tokens
    found = rejection_sampler.apply_sampling_constraints(
        torch.ones(5, 3), ends, SimpleNamespace(all_greedy=False, temperature=temperatures, top_k=None, top_p=None)
    )
    assert found[:, 0].tolist() == pytest.approx([1 / 0.7] * 2 + [1 / 1.3] * 3)
    greedy = receive.expand_to_tokens(temperatures, torch.tensor([1, 2, 3]), 3, 0, 1)
    assert greedy.tolist() == pytest.approx([0.7, 1, 1.3])


@pytest.mark.parametrize("draft", [0, 2, 4])
def test_a_draft_changes_nothing_in_how_a_token_is_drawn(draft):
    """It is the likeliest token, one between, or the most unlikely: all are sampled as often as the policy says."""
    from vllm.v1.sample import rejection_sampler

    if current_platform.is_cpu():  # as its workers do
        current_platform.import_kernels()
        current_platform.register_triton_kernel_overrides()
    torch.manual_seed(0)
    count, logits = 60_000, torch.tensor([2.0, 1.0, 0.0, -1.0, -4.0])
    law = (logits / 0.7).softmax(0)
    asked = SimpleNamespace(all_greedy=False, all_random=True, temperature=torch.full((count,), 0.7), generators={})
    asked.top_k = asked.top_p = None
    ends = torch.arange(1, count + 1, dtype=torch.int32)
    logits = rejection_sampler.apply_sampling_constraints(logits.repeat(count, 1), ends, asked)
    drafts, bonus = torch.full((count,), draft, dtype=torch.int32), torch.zeros(count, 1, dtype=torch.int64)
    drawn = rejection_sampler.rejection_sample(drafts, [1] * count, 1, ends, None, logits, bonus, asked)[:, 0]
    found = torch.bincount(drawn, minlength=5) / count
    assert ((found - law).abs() < 5 * (law * (1 - law) / count).sqrt()).all(), (found, law)


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


def test_an_ipc_engine_closes_the_senders_memory_and_its_layers(finished):
    engine, closed = made(receive.IpcEngine), []
    engine._packed_importer = SimpleNamespace(close=lambda: closed.append(True))
    engine.abandon()
    assert (closed, finished) == ([True], ["model"])


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


def test_a_reload_that_finds_no_weights_for_a_layer_is_told_at_debug_level_and_all_else_as_it_is():
    quiet, told = receive.DemoteReloadWarnings(), []
    logger = logging.Logger("vllm.model_executor.model_loader.reload.layerwise")
    logger.handle = lambda record: told.append((quiet.filter(record), record.levelname))
    logger.warning("%s: Failed to load weights", "RotaryEmbedding")
    logger.warning("%s: has another shape", "Linear")
    assert told == [(False, "DEBUG"), (True, "WARNING")]
    kinds = [type(found) for found in logging.getLogger(logger.name).filters]
    assert kinds == [receive.DemoteReloadWarnings]


def test_probe_logits_are_tempered_in_float32_in_both_model_runners_and_a_third_kind_is_refused():
    """As vLLM's sampler does: a quotient in bfloat16 would be rounded once more than what was sampled."""
    logits, quotient = torch.tensor([1.0, 3.0], dtype=torch.bfloat16), torch.tensor([1.0, 3.0]) / 0.6
    assert not torch.equal((logits / 0.6).float(), quotient)

    second = SimpleNamespace(compute_prompt_logprobs=lambda logits_fn, hidden, more: (logits_fn(hidden), more))
    receive.probe_at(SimpleNamespace(prompt_logprobs_worker=second), 0.6)
    found, more = second.compute_prompt_logprobs(lambda hidden: hidden, logits, "more")
    assert torch.equal(found, quotient)
    assert (found.dtype, more) == (torch.float32, "more")

    sampler = SimpleNamespace(compute_logprobs=lambda logits: logits)
    first = SimpleNamespace(sampler=sampler, _get_prompt_logprobs_dict=lambda hidden: sampler.compute_logprobs(hidden))
    receive.probe_at(first, 0.6)
    assert torch.equal(first._get_prompt_logprobs_dict(logits), quotient)
    assert sampler.compute_logprobs(logits) is logits

    with pytest.raises(RuntimeError, match="SimpleNamespace computes prompt log-probs in a way"):
        receive.probe_at(SimpleNamespace(), 0.6)


def test_workers_on_gpus_wait_as_vllm_has_them_wait(monkeypatch):
    init = receive.SpinCondition.__init__
    assert init.__defaults__ == (receive.IDLE_S,)  # here is a CPU
    monkeypatch.setattr(init, "__defaults__", (1,))
    monkeypatch.setattr(receive, "current_platform", SimpleNamespace(is_cpu=lambda: False))
    receive.sleep_when_idle()
    assert init.__defaults__ == (1,)
