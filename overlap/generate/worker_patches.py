"""Replacements of vLLM's own functions in its workers, and the reasons. RuntimeError where the installed vLLM differs
from the known one.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

import torch
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler

IDLE_S = 0.002
"""Seconds for which an idle worker polls for work without a pause; then it sleeps until it is woken."""


def patch_worker() -> None:
    """Before a worker makes its queues and its model."""
    sleep_when_idle()
    # This comes at every load, for layers without weights of their own; the parity check says whether it was whole.
    reload = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")
    reload.addFilter(lambda record: record.msg != "%s: Failed to load weights")
    if current_platform.is_cpu():
        put_in_place(PunicaWrapperCPU, "add_lora_linear", add_one_adapter)
        put_in_place(rejection_sampler, "expand_batch_to_tokens", expand_to_tokens)


def put_in_place(owner: Any, name: str, ours: Callable[..., Any]) -> None:
    """Put ``ours`` in the place of a function of vLLM that has the same parameters."""
    theirs = getattr(owner, name, None)
    if theirs is None or list(inspect.signature(theirs).parameters) != list(inspect.signature(ours).parameters):
        raise RuntimeError(f"this vLLM's {owner.__name__}.{name} is called in a way that is not known here")
    setattr(owner, name, ours)


def sleep_when_idle(condition: Any = SpinCondition) -> None:
    """Have workers on a CPU sleep after ``IDLE_S``; by default they hold a core for 1 s, and it is the learner's. On
    GPUs, where a step takes longer than ``IDLE_S``, each would wait for a wake-up.

    RuntimeError where vLLM waits in another way. To be called before a worker makes its queues.
    """
    if not current_platform.is_cpu():
        return
    init = condition.__init__
    if list(inspect.signature(init).parameters)[-1:] != ["busy_loop_s"] or init.__defaults__ not in ((1,), (IDLE_S,)):
        raise RuntimeError(f"this vLLM's {condition.__name__} waits in a way that is not known here")
    init.__defaults__ = (IDLE_S,)


def add_one_adapter(
    self: Any,
    y: torch.Tensor,
    x: torch.Tensor,
    lora_a_stacked: tuple[torch.Tensor, ...],
    lora_b_stacked: tuple[torch.Tensor, ...],
    scale: float,
    output_slices: tuple[int, ...],
    *,
    buffer: Any = None,
    **kwargs: Any,
) -> None:
    """Add to ``y`` [T, m] what the only adapter makes of ``x`` [T, n]; all tokens of a batch have it or none.
    vLLM's own copies the adapter for every token of a batch on a CPU.
    """
    if self.no_lora:
        return
    start = 0
    for down, up, width in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
        y[:, start : start + width].addmm_(x @ down[0, 0].T, up[0, 0].T, alpha=scale)
        start += width


def expand_to_tokens(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """Values ``x`` [B] of requests for each of their drafted tokens [T], of which ``cu_num_tokens`` [B] are the running
    sums. vLLM's own writes into a copy on a CPU without Triton: it judges drafts at whatever temperature the memory
    holds.
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    return x.masked_fill(x == replace_from, replace_to).repeat_interleave(counts, output_size=num_tokens)


def probe_at(runner: Any, temperature: float) -> None:
    """Scale the logits of prompt log-probs in either of vLLM's model runners, in float32 as its sampler does;
    RuntimeError for a third kind.
    """
    if (worker := getattr(runner, "prompt_logprobs_worker", None)) is not None:
        inner = worker.compute_prompt_logprobs
        worker.compute_prompt_logprobs = lambda logits_fn, *args, **kwargs: inner(
            lambda hidden: logits_fn(hidden).float() / temperature, *args, **kwargs
        )
    elif hasattr(runner, "_get_prompt_logprobs_dict") and hasattr(runner.sampler, "compute_logprobs"):
        runner._get_prompt_logprobs_dict = _tempered(runner, temperature)
    else:
        raise RuntimeError(f"{type(runner).__name__} computes prompt log-probs in a way that is not known here")


def _tempered(runner: Any, temperature: float) -> Callable[..., Any]:
    inner, sampler = runner._get_prompt_logprobs_dict, runner.sampler
    plain = sampler.compute_logprobs

    def prompt_logprobs(*args: Any, **kwargs: Any) -> Any:
        sampler.compute_logprobs = lambda logits: plain(logits.float() / temperature)
        try:
            return inner(*args, **kwargs)
        finally:
            sampler.compute_logprobs = plain

    return prompt_logprobs
