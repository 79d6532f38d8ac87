"""What stands in the place of vLLM's own in a worker: it does as it says, and is refused where vLLM is another."""

from __future__ import annotations

import inspect
import logging
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("vllm")
import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.model_executor.model_loader.reload import layerwise
from vllm.v1.sample import rejection_sampler

from overlap.generate import receive, worker_patches

assert receive  # a worker imports it, which puts them in their places


@pytest.mark.parametrize("theirs", [None, lambda values: 1, lambda values, seeds, more: 1])
def test_a_function_of_vllm_with_other_parameters_is_not_replaced(theirs):
    owner = ModuleType("vllm.sampler")
    owner.draw = theirs
    with pytest.raises(
        RuntimeError, match=r"this vLLM's vllm\.sampler\.draw is called in a way that is not known here"
    ):
        worker_patches.put_in_place(owner, "draw", lambda values, seeds: 2)
    assert owner.draw is theirs


def test_of_the_warnings_of_a_load_only_that_of_layers_without_weights_is_silent() -> None:
    silent, other = "%s: Failed to load weights", "Allocating %s MB of device memory"
    logger = logging.getLogger(layerwise.__name__)
    assert silent in inspect.getsource(layerwise)
    assert logger.isEnabledFor(logging.WARNING)
    records = [logger.makeRecord(logger.name, logging.WARNING, "", 0, text, (), None) for text in (silent, other)]
    assert [bool(logger.filter(record)) for record in records] == [False, True]


def test_workers_are_told_to_sleep_soon_and_another_way_of_waiting_is_refused():
    class Waits:
        def __init__(self, is_reader, busy_loop_s=1):
            self.seconds = busy_loop_s

    worker_patches.sleep_when_idle(Waits)
    assert Waits(True).seconds == worker_patches.IDLE_S == worker_patches.SpinCondition.__init__.__defaults__[-1]

    class Unknown:
        def __init__(self, is_reader, patience=1): ...

    with pytest.raises(RuntimeError, match="Unknown waits in a way that is not known"):
        worker_patches.sleep_when_idle(Unknown)


def test_probe_logits_are_tempered_in_float32_in_both_model_runners_and_a_third_kind_is_refused():
    """As vLLM's sampler does: a quotient in bfloat16 would be rounded once more than what was sampled."""
    logits, quotient = torch.tensor([1.0, 3.0], dtype=torch.bfloat16), torch.tensor([1.0, 3.0]) / 0.6
    assert not torch.equal((logits / 0.6).float(), quotient)

    second = SimpleNamespace(compute_prompt_logprobs=lambda logits_fn, hidden, more: (logits_fn(hidden), more))
    worker_patches.probe_at(SimpleNamespace(prompt_logprobs_worker=second), 0.6)
    found, more = second.compute_prompt_logprobs(lambda hidden: hidden, logits, "more")
    assert torch.equal(found, quotient)
    assert (found.dtype, more) == (torch.float32, "more")

    sampler = SimpleNamespace(compute_logprobs=lambda logits: logits)
    first = SimpleNamespace(sampler=sampler, _get_prompt_logprobs_dict=lambda hidden: sampler.compute_logprobs(hidden))
    worker_patches.probe_at(first, 0.6)
    assert torch.equal(first._get_prompt_logprobs_dict(logits), quotient)
    assert sampler.compute_logprobs(logits) is logits

    with pytest.raises(RuntimeError, match="SimpleNamespace computes prompt log-probs in a way"):
        worker_patches.probe_at(SimpleNamespace(), 0.6)


def test_drafts_are_judged_at_the_temperature_of_their_request():
    """vLLM's own fills a copy on a CPU without Triton, and leaves what it returns as the memory was."""
    temperatures, ends = torch.tensor([0.7, 0.0, 1.3]), torch.tensor([2, 2, 5], dtype=torch.int32)
    assert rejection_sampler.expand_batch_to_tokens is worker_patches.expand_to_tokens
    found = rejection_sampler.apply_sampling_constraints(
        torch.ones(5, 3), ends, SimpleNamespace(all_greedy=False, temperature=temperatures, top_k=None, top_p=None)
    )
    assert found[:, 0].tolist() == pytest.approx([1 / 0.7] * 2 + [1 / 1.3] * 3)
    greedy = worker_patches.expand_to_tokens(temperatures, torch.tensor([1, 2, 3]), 3, 0, 1)
    assert greedy.tolist() == pytest.approx([0.7, 1, 1.3])


@pytest.mark.parametrize("no_lora", [False, True])
def test_one_adapter_adds_what_vllm_adds_and_nothing_to_a_batch_without_it(no_lora: bool) -> None:
    made, rank, inner, widths = torch.Generator().manual_seed(0), 4, 6, (5, 3)
    downs = tuple(torch.randn(1, 1, rank, inner, generator=made) for _ in widths)
    ups = tuple(torch.randn(1, 1, width, rank, generator=made) for width in widths)
    x, y = torch.randn(7, inner, generator=made), torch.randn(7, sum(widths), generator=made)
    wrapper = PunicaWrapperCPU(16, 4, "cpu")
    indices = torch.full((7,), -1 if no_lora else 0)
    wrapper.indices_len[0] = 7
    wrapper._token_lora_indices[:7] = indices
    wrapper._update_prefill_metadata(indices)
    wrapper.is_prefill = True
    found, expected = y.clone(), y.clone()
    buffers = tuple(torch.zeros(7, rank) for _ in widths)
    wrapper.add_shrink(buffers, x, downs, 1.0)  # which is what vLLM's own sum is made of
    wrapper.add_expand(expected, buffers, ups, widths, add_inputs=True)
    assert PunicaWrapperCPU.add_lora_linear is worker_patches.add_one_adapter
    wrapper.add_lora_linear(found, x, downs, ups, 1.0, widths)
    assert torch.allclose(found, expected, atol=1e-5)
    assert torch.equal(found, y) == no_lora
