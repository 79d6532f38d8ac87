"""``rollout.engine``: goes to vLLM's ``AsyncEngineArgs`` as it is, but for options that a field decides or that would
break a promise. vLLM itself judges all other names and values when the engine starts (``engine.open_engine``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from overlap.config.fields import Config
from overlap.core.errors import ConfigError, raise_all
from overlap.placement.engine_memory import CPU_BLOCK_TOKENS

FIELD = "rollout.engine"
_REASONS = {
    "the engine serves the policy, and the learner sends its weights: use model.policy": (
        "model model_weights tokenizer tokenizer_mode tokenizer_revision skip_tokenizer_init revision code_revision "
        "hf_config_path hf_overrides model_class_overrides load_format model_loader_extra_config runner convert"
    ),
    "the samples would not be the policy's own, or their log-probs not the learner's: leave it out": (
        "logprobs_mode generation_config override_generation_config logits_processors watermark_config "
        "structured_outputs_config reasoning_config disable_sliding_window kv_sharing_fast_prefill "
        "enable_mamba_cache_stochastic_rounding mamba_config.enable_stochastic_rounding "
        "speculative_config.synthetic_acceptance_rates speculative_config.synthetic_acceptance_length"
    ),
    "use model.dtype": "dtype",
    "use run.seed": "seed",
    "use model.prompt_tokens, model.response_tokens and episode.tokens": "max_model_len",
    "use rollout.max_sequences": "max_num_seqs max_num_active_seqs",
    "use rollout.gpu_memory; on a CPU rollout.max_sequences": (
        "gpu_memory_utilization kv_cache_memory_bytes num_gpu_blocks_override"
    ),
    "how weights travel follows from who sits where: leave it out": "weight_transfer_config",
    "adapters come from the learner: use learn.lora_rank": (
        "enable_lora max_loras max_lora_rank lora_dtype lora_target_modules"
    ),
    "use episode.reasoning_parser": "reasoning_parser",
    "it follows from rollout.in_flight and the staleness bound: leave it out": (
        "scheduling_policy scheduler_cls async_scheduling max_num_queued_reqs max_num_queued_tokens"
    ),
    "an engine sleeps where it shares GPUs with the learner: leave it out": (
        "enable_sleep_mode sleep_preserve_parameter_names"
    ),
    "each engine has a process of its own with a worker of ours: leave it out": (
        "distributed_executor_backend worker_cls worker_extension_cls disable_log_stats"
    ),
    "an engine has as many GPUs as rollout.tensor_parallel says: use that, and rollout.replicas for more engines": (
        "tensor_parallel_size data_parallel_size data_parallel_backend pipeline_parallel_size "
        "prefill_context_parallel_size nnodes"
    ),
    "a load of new weights does not find experts that move: use enable_expert_parallel alone": "enable_eplb",
    "vLLM cannot load new weights into what it has offloaded: use rollout.tensor_parallel": (
        "offload_backend cpu_offload_gb offload_group_size"
    ),
    "what old weights computed would outlive a load of new ones: use rollout.gpu_memory for a larger KV cache": (
        "kv_transfer_config kv_offloading_size kv_offloading_backend"
    ),
}
REFUSED: Mapping[str, str] = {name: reason for reason, names in _REASONS.items() for name in names.split()}
"""Option, or option and name inside it → why not, and what to use."""
_ONLINE = ("online", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel")
"""Values of ``quantization`` with which vLLM quantizes plain weights while these are loaded."""
_NOT_ASYNC = ("ngram", "suffix", "medusa", "mlp_speculator", "custom_class")
"""Methods of speculation that vLLM's asynchronous scheduler does not know, of which ``KeepScheduler`` is one."""


def check_options(cfg: Config, device: str) -> None:
    """Raise one ConfigError for all that ``rollout.engine`` may not hold in an engine on "cpu" or "cuda"."""
    raise_all([*_by_name(cfg.rollout.engine), *_by_value(cfg, device), *_of_speculation(cfg)])


def _by_name(options: Mapping[str, Any]) -> Iterator[ConfigError]:
    for name, value in options.items():
        inside = value if isinstance(value, Mapping) else {}
        for path, found in ((name, value), *((f"{name}.{key}", below) for key, below in inside.items())):
            if path in REFUSED:
                yield ConfigError(f"{FIELD}.{path}", found, REFUSED[path])


def _by_value(cfg: Config, device: str) -> Iterator[ConfigError]:
    """Values that would break a promise, of options whose other values keep it."""
    options = cfg.rollout.engine
    if (quantization := options.get("quantization")) not in (None, *_ONLINE):
        way_out = f"this method needs a quantized checkpoint, and the learner sends plain weights: use {_ONLINE[-1]}"
        yield ConfigError(f"{FIELD}.quantization", quantization, way_out)
    if device == "cpu" and options.get("enforce_eager") is False:
        yield ConfigError(f"{FIELD}.enforce_eager", False, "an engine on a CPU is not compiled: leave it out")
    block = options.get("block_size")
    whole = isinstance(block, int) and block > 0 and block % CPU_BLOCK_TOKENS == 0
    if device == "cpu" and not (block is None or whole):
        way_out = f"an engine on a CPU has blocks of {CPU_BLOCK_TOKENS} tokens or a multiple of that: use one"
        yield ConfigError(f"{FIELD}.block_size", block, way_out)
    if options.get("disable_custom_all_reduce") is False:
        way_out = "vLLM's own all-reduce does not outlive a sleep, and is used where an engine never sleeps: "
        yield ConfigError(f"{FIELD}.disable_custom_all_reduce", False, f"{way_out}use true, or leave it out")


def _of_speculation(cfg: Config) -> Iterator[ConfigError]:
    given = cfg.rollout.engine.get("speculative_config")
    speculation = given if isinstance(given, Mapping) else {}
    field, draft = f"{FIELD}.speculative_config", speculation.get("model")
    method = speculation.get("method") or draft  # vLLM takes the name of a method there, too
    if cfg.rollout.has_draft_model and isinstance(draft, str) and not Path(draft).is_absolute():
        way_out = "an engine has a working directory of its own, and downloads nothing: give the checkpoint's full path"
        yield ConfigError(f"{field}.model", draft, way_out)
    if method in _NOT_ASYNC and cfg.rollout.in_flight == "keep":
        way_out = "vLLM schedules it in another way than rollout.in_flight=keep: use rollout.in_flight=recompute"
        yield ConfigError(f"{field}.method", method, way_out)
    if (rule := speculation.get("rejection_sample_method")) == "synthetic":
        reason = REFUSED["speculative_config.synthetic_acceptance_rates"]
        yield ConfigError(f"{field}.rejection_sample_method", rule, reason)
