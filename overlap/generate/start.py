"""Arguments and environment with which vLLM is started. Imports nothing of vLLM."""

from __future__ import annotations

from typing import Any

from overlap.core.errors import ConfigError
from overlap.generate.bind_to_parent import ENGINE
from overlap.generate.service import EngineSpec
from overlap.placement.devices import free_memory
from overlap.placement.engine_memory import cpu_block_tokens, cpu_kv_bytes
from overlap.placement.shapes import shape_of

READY_S = {"cpu": 600.0, "cuda": 1200.0}
"""Longest start of an engine, s. On GPUs it may compile kernels first, where the machine has nvcc."""
BATCHED_TOKENS = 8192
"""Tokens that an engine on GPUs reads at once; vLLM's own default in our case is 2048, with which prefills take longer.
"""
KEEP_SCHEDULER = "overlap.generate.scheduler.KeepScheduler"
_SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)


def engine_args(spec: EngineSpec, cpu_kv_bytes: int) -> dict[str, Any]:
    """Arguments of vLLM's ``AsyncEngineArgs``, with those of ``rollout.engine``; ``cpu_kv_bytes`` is 0 on a GPU."""
    return _own_args(spec, cpu_kv_bytes) | spec.cfg.rollout.engine


def _own_args(spec: EngineSpec, cpu_kv_bytes: int) -> dict[str, Any]:
    rollout = spec.cfg.rollout
    args: dict[str, Any] = {
        "model": str(spec.policy),
        "load_format": "auto" if spec.load_weights or spec.takes_adapter or rollout.has_draft_model else "dummy",
        "dtype": spec.cfg.dtype,
        "max_model_len": spec.cfg.context_tokens + 1,  # a probe as long as the context also asks for a token
        "max_num_seqs": rollout.at_once,
        "seed": spec.seed,
        "logprobs_mode": "processed_logprobs",
        "tensor_parallel_size": rollout.tensor_parallel,
        "worker_extension_cls": "overlap.generate.receive.WorkerExtension",
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        "scheduling_policy": "priority",
    }
    if spec.takes_adapter:
        args |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": spec.cfg.learn.engine_rank}
    if rollout.in_flight == "keep":
        args |= {"scheduler_cls": KEEP_SCHEDULER, "async_scheduling": True}
    if cpu_kv_bytes:
        return args | {
            "enforce_eager": True,
            "kv_cache_memory_bytes": cpu_kv_bytes,
            "block_size": cpu_block_tokens(spec.cfg),
        }
    if spec.sleeps and rollout.has_draft_model:
        args["sleep_preserve_parameter_names"] = ["draft.*"]  # the learner sends the policy alone
    if spec.sleeps and rollout.tensor_parallel > 1:
        args["disable_custom_all_reduce"] = True  # its buffers do not outlive a sleep: vLLM crashes after it
    args["max_num_batched_tokens"] = max(BATCHED_TOKENS, rollout.at_once)
    return args | {"gpu_memory_utilization": rollout.gpu_memory, "enable_sleep_mode": spec.sleeps}


def kv_bytes(spec: EngineSpec, model: Any) -> int:
    """KV cache of an engine on this machine's CPUs, by the memory that is free for it.

    ``model`` is the policy's text config. Raises ConfigError for a context that the policy does not have.
    """
    shape = shape_of({name: getattr(model, name, None) for name in _SIZES})
    context = spec.cfg.context_tokens
    if 0 < shape.context < context:
        way_out = f"the policy has a context of {shape.context} tokens for prompt_tokens + response_tokens: use fewer"
        raise ConfigError("model.response_tokens", context, way_out)
    return cpu_kv_bytes(spec.cfg, shape, free_memory() // spec.engines)


def engine_environment(device: str) -> dict[str, str]:
    """Variables of the engine's processes, on top of the environment of the process that starts them."""
    # Threads that spin for one that another process keeps from its core cost the others theirs.
    waiting = {"OMP_WAIT_POLICY": "PASSIVE"} if device == "cpu" else {}
    return waiting | {
        ENGINE: "1",
        "VLLM_HOST_IP": "127.0.0.1",  # one machine: no socket on an outer interface
        "VLLM_RPC_BASE_PATH": ".",  # the tree's own folder: a longer path may not fit a socket's 107 bytes
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_ENGINE_READY_TIMEOUT_S": str(int(READY_S[device])),
        "TRITON_F32_DEFAULT": "ieee",  # attention in float32 would be TF32, whose error is above the parity bound
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",  # for the one token that a probe of the whole context asks for
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",  # the policy is a directory by now
    }
