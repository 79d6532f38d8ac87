"""How an engine is opened (its arguments, its environment), and what it is asked for. No vLLM in here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlap.core import Finish, VersionSpan
from overlap.errors import ConfigError
from overlap.generate import child
from overlap.placement import CPU_BLOCK_TOKENS, free_memory, kv_cache_bytes

READY_S = 600.0
"""Longest start of an engine, s."""
KEEP_SCHEDULER = "overlap.generate.scheduler.KeepScheduler"


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What an engine is opened with. ``context_tokens`` and ``max_sequences`` bound the KV cache."""

    policy: Path
    device: str
    dtype: str
    context_tokens: int
    max_sequences: int
    seed: int
    temperature: float
    gpu_memory: float
    tensor_parallel: int
    backend: str
    landing: str
    load_weights: bool
    sleeps: bool
    """It takes turns with the learner on its GPUs."""
    engines: int
    """On its machine, which share the memory there where they run on a CPU."""
    tool_parser: str = ""
    reasoning_parser: str = ""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one response is sampled; ``seed=None`` leaves it to the engine. Those of lower ``priority`` go first."""

    temperature: float
    max_tokens: int
    stop: tuple[str, ...]
    priority: int
    seed: int | None = None
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class Sample:
    """What vLLM says of one finished request; see :class:`~overlap.core.Trajectory` for the fields."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish: Finish
    spans: tuple[VersionSpan, ...]
    cached_tokens: int = 0


def engine_args(spec: EngineSpec, cpu_kv_bytes: int) -> dict[str, Any]:
    """Arguments of vLLM's ``AsyncEngineArgs``; ``cpu_kv_bytes`` is 0 on a GPU."""
    args = {
        "model": str(spec.policy),
        "load_format": "auto" if spec.load_weights else "dummy",
        "dtype": spec.dtype,
        "max_model_len": spec.context_tokens + 1,  # a probe as long as the context also asks for a token
        "max_num_seqs": spec.max_sequences,
        "seed": spec.seed,
        "logprobs_mode": "processed_logprobs",
        "tensor_parallel_size": spec.tensor_parallel,
        "worker_extension_cls": "overlap.generate.receive.Worker",
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        "scheduling_policy": "priority",
    }
    if spec.landing == "keep":
        args |= {"scheduler_cls": KEEP_SCHEDULER, "async_scheduling": True}
    if cpu_kv_bytes:
        return args | {
            "enforce_eager": True,
            "kv_cache_memory_bytes": cpu_kv_bytes,
            "block_size": CPU_BLOCK_TOKENS,
        }
    if spec.sleeps and spec.tensor_parallel > 1:
        args["disable_custom_all_reduce"] = True  # its buffers do not outlive a sleep: vLLM crashes after it
    return args | {"gpu_memory_utilization": spec.gpu_memory, "enable_sleep_mode": spec.sleeps}


def kv_bytes(spec: EngineSpec, model: Any) -> int:
    """KV cache for ``max_sequences`` full contexts; where memory is short less, but never below one of them.

    ``model`` is the policy's text config. Raises ConfigError for a context that the policy does not have.
    """
    longest = getattr(model, "max_position_embeddings", None) or spec.context_tokens
    if spec.context_tokens > longest:
        raise ConfigError(
            "model.response_tokens",
            spec.context_tokens,
            f"the policy has a context of {longest} tokens for prompt_tokens + response_tokens: use fewer",
        )
    heads = getattr(model, "num_key_value_heads", None) or model.num_attention_heads
    width = getattr(model, "head_dim", None) or model.hidden_size // model.num_attention_heads
    per_token = 2 * model.num_hidden_layers * heads * width * (2 if spec.dtype == "bfloat16" else 4)
    return kv_cache_bytes(per_token, spec.context_tokens, spec.max_sequences, free_memory() // spec.engines)


def environment() -> dict[str, str]:
    """What the engine's processes find in their environment, on top of that of the process that starts them."""
    return {
        child.ENGINE: "1",
        "VLLM_HOST_IP": "127.0.0.1",  # one machine: no socket on an outer interface
        "VLLM_RPC_BASE_PATH": ".",  # the tree's own folder: a longer path may not fit a socket's 107 bytes
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_ENGINE_READY_TIMEOUT_S": str(int(READY_S)),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",  # for the one token that a probe of the whole context asks for
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",  # the policy is a directory by now
    }
