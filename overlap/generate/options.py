"""``rollout.engine``: what goes to vLLM's ``AsyncEngineArgs`` as it is, and what is refused because it would break a
promise. Names, types and choices are read in the source of the installed vLLM, which is not imported.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from overlap.config.fields import Config
from overlap.errors import ConfigError, raise_all
from overlap.generate.vllm_source import Kind, VllmSource, is_plain
from overlap.placement.engine_memory import CPU_BLOCK_TOKENS

FIELD = "rollout.engine"
_MODEL = "the engine serves the policy, and the learner sends its weights: use model.policy"
_LAW = "the samples would not be the policy's own, or their log-probs not the learner's: leave it out"
_UNUSED = "nothing here uses it: leave it out"
_REASONS = {
    _MODEL: (
        "model model_weights tokenizer tokenizer_mode tokenizer_revision skip_tokenizer_init tokens_only revision "
        "code_revision hf_token hf_config_path hf_overrides config_format model_class_overrides trust_remote_code "
        "download_dir load_format model_loader_extra_config ignore_patterns pt_load_map_location use_tqdm_on_load "
        "safetensors_load_strategy safetensors_prefetch_num_threads safetensors_prefetch_block_size "
        "max_parallel_loading_workers enable_ep_weight_filter runner convert diffusion_config pooler_config"
    ),
    _LAW: (
        "logprobs_mode generation_config override_generation_config logits_processors watermark_config "
        "structured_outputs_config reasoning_config disable_sliding_window kv_sharing_fast_prefill "
        "enable_mamba_cache_stochastic_rounding mamba_cache_philox_rounds"
    ),
    "use model.dtype": "dtype",
    "use run.seed": "seed",
    "use model.prompt_tokens, model.response_tokens and episode.tokens": "max_model_len",
    "use rollout.max_sequences": "max_num_seqs max_num_active_seqs",
    "use rollout.tensor_parallel": "tensor_parallel_size",
    "use rollout.gpu_memory; on a CPU rollout.max_sequences": (
        "gpu_memory_utilization kv_cache_memory_bytes num_gpu_blocks_override"
    ),
    "use rollout.weight_backend": "weight_transfer_config",
    "use learn.lora_rank and learn.lora_sync: adapters come from the learner": (
        "enable_lora max_loras max_lora_rank default_mm_loras fully_sharded_loras max_cpu_loras lora_dtype "
        "lora_target_modules enable_tower_connector_lora specialize_active_lora enable_mixed_moe_lora_format "
        "enable_moe_shared_loras max_lora_cls_labels"
    ),
    "use episode.reasoning_parser": "reasoning_parser reasoning_parser_plugin",
    "requests of the oldest groups go first, which staleness counts on: leave it out": "scheduling_policy",
    "it follows from rollout.in_flight: leave it out": "scheduler_cls async_scheduling",
    "an engine sleeps where it shares GPUs with the learner (rollout.weight_backend=ipc): leave it out": (
        "enable_sleep_mode sleep_preserve_parameter_names enable_cumem_allocator enable_nccl_comm_suspend"
    ),
    "each engine has a process and seats of its own, and weights come in through a worker of ours: leave it out": (
        "distributed_executor_backend worker_cls worker_extension_cls ray_workers_use_nsight device_ids "
        "shutdown_timeout fault_tolerance_config enable_fault_tolerance"
    ),
    "an engine has as many GPUs as rollout.tensor_parallel says, which the placement counts: use that, and "
    "rollout.replicas for more engines": (
        "data_parallel_size data_parallel_rank data_parallel_start_rank data_parallel_size_local data_parallel_address "
        "data_parallel_rpc_port data_parallel_hybrid_lb data_parallel_external_lb data_parallel_multi_port_external_lb "
        "data_parallel_backend pipeline_parallel_size prefill_context_parallel_size nnodes node_rank master_addr "
        "master_port all2all_backend enable_elastic_ep elastic_ep_max_dp_size enable_dbo ubatch_size "
        "dbo_decode_token_threshold dbo_prefill_token_threshold dp_sync_interval disable_nccl_for_dp_synchronization "
        "prefill_schedule_interval"
    ),
    "experts that move between GPUs are not found by a load of new weights: use enable_expert_parallel alone": (
        "enable_eplb eplb_config"
    ),
    "vLLM cannot load new weights into what it has offloaded: use rollout.tensor_parallel": (
        "offload_backend cpu_offload_gb cpu_offload_params offload_group_size offload_num_in_group "
        "offload_prefetch_step offload_params engram_config"
    ),
    "what old weights computed would outlive a load of new ones: use rollout.gpu_memory for a larger KV cache": (
        "kv_transfer_config kv_offloading_size kv_offloading_backend kv_events_config"
    ),
    "how many requests wait is bounded by rollout.max_staleness, and none may be turned away: leave it out": (
        "max_num_queued_reqs max_num_queued_tokens"
    ),
    "use speculative_config": "spec_method spec_model spec_tokens",
    "it is set by what trains: draft weights are read from the draft's own checkpoint: leave it out": (
        "speculative_config.draft_load_config speculative_config.target_model_config "
        "speculative_config.target_parallel_config speculative_config.draft_model_config "
        "speculative_config.draft_parallel_config"
    ),
    "drafts would be accepted at a rate that is made up, whatever the policy says: leave it out": (
        "speculative_config.synthetic_acceptance_rates speculative_config.synthetic_acceptance_length"
    ),
    "a rounding by chance, which the learner does not repeat: leave it out": "mamba_config.enable_stochastic_rounding",
    _UNUSED: (
        "served_model_name allowed_local_media_path allowed_media_domains enable_prompt_embeds max_logprobs "
        "allow_deprecated_quantization "
        "return_sampling_mask enable_trace_replay enable_return_routed_experts aux_output_config stream_interval "
        "io_processor_plugin renderer_num_workers enable_mm_embeds interleave_mm_strings media_io_kwargs "
        "mm_processor_kwargs mm_processor_cache_gb mm_processor_cache_type mm_hasher_algorithm "
        "mm_shm_cache_max_object_size_mb mm_encoder_only mm_encoder_tp_mode mm_encoder_attn_backend "
        "mm_encoder_attn_dtype mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_path "
        "mm_encoder_fp8_scale_save_margin video_pruning_rate video_pruning_method mm_tensor_ipc mm_processor_device "
        "mm_ipc_gpu_memory_gb mm_device_do_normalize disable_chunked_mm_input enable_shm_tensor_arena "
        "ec_transfer_config ec_manager_config enable_mm_processor_stats"
    ),
    "vLLM's own statistics are off; see metrics.jsonl and run.log: leave it out": (
        "disable_log_stats aggregate_engine_logging show_hidden_metrics_for_version otlp_traces_endpoint "
        "collect_detailed_traces per_request_spec_decode_metrics kv_cache_metrics kv_cache_metrics_sample "
        "custom_histogram_buckets cudagraph_metrics enable_mfu_metrics enable_logging_iteration_details "
        "profiler_config logging_config log_config_file"
    ),
}
REFUSED: Mapping[str, str] = {name: reason for reason, names in _REASONS.items() for name in names.split()}
"""Option, or option and name inside it → why not, and what to use."""
_ONLINE = ("vllm.config.quantization", "_ONLINE_SHORTHANDS")
"""Where vLLM lists the methods that quantize plain weights while these are loaded."""
_NOT_ASYNC = ("ngram", "suffix", "medusa", "mlp_speculator", "custom_class")
"""Methods of speculation that vLLM's asynchronous scheduler does not know, of which ``KeepScheduler`` is one."""


def check_options(cfg: Config, device: str) -> None:
    """Raise one ConfigError for all that ``rollout.engine`` may not hold in an engine on "cpu" or "cuda"."""
    if options := cfg.rollout.engine:
        vllm = VllmSource()
        raise_all([error for name, value in options.items() for error in _wrong(vllm, (name,), value)])
        raise_all(list(_broken(cfg, device, vllm)))


def _wrong(vllm: VllmSource, path: tuple[str, ...], value: Any) -> Iterator[ConfigError]:
    """What is refused by name, or is none of vLLM's, of an option and of the names inside it."""
    name, last, known = ".".join(path), path[-1], vllm.options(path[:-1])
    field, kind = f"{FIELD}.{name}", known.get(last, Kind(open=True))
    if reason := REFUSED.get(name):
        yield ConfigError(field, value, reason)
    elif known and last not in known:
        allowed = [one for one in known if ".".join((*path[:-1], one)) not in REFUSED]
        near = difflib.get_close_matches(last.replace("-", "_"), allowed, n=1)
        owner = f"vLLM's {path[-2]}" if len(path) > 1 else "vLLM"
        way_out = f"did you mean {near[0]}?" if near else "see the engine arguments of the installed version"
        if len(path) == 1 and isinstance(value, Mapping) and not near:
            way_out = f"its options stand directly in {FIELD}"  # verl has one mapping per engine
        yield ConfigError(field, value, f"{owner} has no such option; {way_out}")
    elif not (is_plain(value) and kind.fits(value, below=len(path) > 1)):
        near = difflib.get_close_matches(str(value), kind.names, n=1)
        way_out = f"did you mean {near[0]}?" if near else f"use {kind}"
        if isinstance(value, str) and {int, float} & set(kind.types):
            way_out += "; YAML reads quotes, and 1e-2 without a point, as a string: write 16, or 1.0e-2"
        yield ConfigError(field, value, way_out)
    elif isinstance(value, Mapping) and vllm.options(path):
        for key, below in value.items():
            yield from _wrong(vllm, (*path, str(key)), below)


def _broken(cfg: Config, device: str, vllm: VllmSource) -> Iterator[ConfigError]:
    """Values that would break a promise, of options whose other values keep it."""
    options = cfg.rollout.engine
    quantization, online = options.get("quantization"), (*vllm.table(*_ONLINE), "online")
    if quantization is not None and len(online) > 1 and quantization not in online:
        way_out = "the learner's weights are not quantized, and this method needs a checkpoint that is: "
        yield ConfigError(f"{FIELD}.quantization", quantization, f"{way_out}use one of {', '.join(sorted(online))}")
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
    given = options.get("speculative_config")
    speculation = given if isinstance(given, Mapping) else {}
    draft = speculation.get("model")
    method = speculation.get("method") or draft  # vLLM takes the name of a method there, too
    if cfg.rollout.has_draft_model and isinstance(draft, str) and not Path(draft).is_absolute():
        way_out = (
            "an engine has a working directory of its own, and downloads nothing: give the checkpoint's whole path"
        )
        yield ConfigError(f"{FIELD}.speculative_config.model", draft, way_out)
    if method == "extract_hidden_states":
        yield ConfigError(f"{FIELD}.speculative_config.method", method, "it drafts nothing: use ngram, for instance")
    if method in _NOT_ASYNC and cfg.rollout.in_flight == "keep":
        way_out = "vLLM schedules it in another way than rollout.in_flight=keep: use rollout.in_flight=recompute"
        yield ConfigError(f"{FIELD}.speculative_config.method", method, way_out)
    if (rule := speculation.get("rejection_sample_method")) == "synthetic":
        reason = REFUSED["speculative_config.synthetic_acceptance_rates"]
        yield ConfigError(f"{FIELD}.speculative_config.rejection_sample_method", rule, reason)
