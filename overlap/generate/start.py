"""The start of vLLM: its arguments and environment, and what is checked before. Importing this imports nothing of vLLM.

``open_engine`` looks once, with ``inspect.signature``, whether vLLM has the shape that is called here, and raises
:class:`~overlap.core.errors.EngineError` where it has another. Runs in the host.
"""

from __future__ import annotations

import difflib
import inspect
import os
import shutil
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from overlap.config.rollout import EpisodeConfig
from overlap.core.errors import ConfigError, EngineError, one_line, raise_all
from overlap.generate.bind_to_parent import ENGINE, fork_one_process
from overlap.generate.engine import VllmEngine
from overlap.generate.options import REFUSED
from overlap.generate.service import TRANSFERS, EngineSpec
from overlap.placement.devices import free_memory
from overlap.placement.engine_memory import cpu_block_tokens, cpu_kv_bytes
from overlap.placement.shapes import shape_of, text_config
from overlap.policy.check import adapted_layers

READY_S = {"cpu": 600.0, "cuda": 1200.0}
"""Longest start of an engine, s. On GPUs it may compile kernels first, where the machine has nvcc."""
BATCHED_TOKENS = 8192
"""Tokens that an engine on GPUs reads at once; vLLM's own default in our case is 2048, with which prefills take longer.
"""
KEEP_SCHEDULER = "overlap.generate.scheduler.KeepScheduler"
_PARSERS = {
    "tool_parser": ("vllm.tool_parsers", "ToolParserManager"),
    "reasoning_parser": ("vllm.reasoning", "ReasoningParserManager"),
}
_NAMES: Mapping[str, tuple[str, ...]] = {
    "vllm": ("AsyncEngineArgs", "SamplingParams", "TokensPrompt"),
    "vllm.config": ("WeightTransferConfig",),
    "vllm.distributed.weight_transfer.base": ("WeightTransferInitRequest", "WeightTransferUpdateRequest"),
    "vllm.lora.request": ("LoRARequest",),
    "vllm.model_executor.models": ("ModelRegistry", "supports_lora"),
    "vllm.platforms": ("current_platform",),
    "vllm.sampling_params": ("RequestOutputKind",),
    "vllm.utils.ompmultiprocessing": ("OMPProcessManager",),
    "vllm.v1.core.sched.async_scheduler": ("AsyncScheduler",),
    "vllm.v1.engine.async_llm": ("AsyncLLM",),
    "vllm.v1.request": ("Request",),
}
_WAY_OUT = "install the vLLM that requirements/ names"

CALLS: Mapping[str, tuple[str, ...]] = {
    "from_vllm_config": ("vllm_config", "disable_log_stats"),
    "generate": ("prompt", "sampling_params", "request_id", "priority", "lora_request"),
    "pause_generation": ("mode", "clear_cache"),
    "resume_generation": (),
    "init_weight_transfer_engine": ("request",),
    "start_weight_update": (),
    "update_weights": ("request",),
    "finish_weight_update": ("weight_version",),
    "update_weight_version": ("new_version",),
    "reset_prefix_cache": ("reset_running_requests",),
    "collective_rpc": ("method", "args"),
    "sleep": ("level", "mode"),
    "wake_up": ("tags",),
    "get_tokenizer": (),
}
"""Methods of ``AsyncLLM`` that are called, and the parameters that are passed by name."""
SCHEDULER_CALLS: Mapping[str, tuple[str, ...]] = {
    "add_request": ("request",),
    "reset_prefix_cache": ("reset_running_requests", "reset_connector"),
}
"""Methods that our scheduler (``scheduler``) overrides, and their parameters."""


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


def kv_bytes(spec: EngineSpec) -> int:
    """KV cache of an engine on this machine's CPUs, by the memory that is free for it. Raises ConfigError for a context
    that the policy does not have.
    """
    shape = shape_of(text_config(spec.policy))
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


def open_engine(spec: EngineSpec) -> VllmEngine:
    """Import vLLM and start an engine, in the running event loop. Blocks for seconds, and changes this process.

    Raises EngineError where vLLM has another shape than the one known here, and ConfigError for a device that it lacks.
    """
    if spec.device == "cpu":
        # vLLM compiles one small function also when it runs eagerly, for 10 s in the first batch, to save 2 ms in each.
        os.environ["TORCH_COMPILE_DISABLE"] = "1"
        if shutil.which("lscpu") is None:
            raise EngineError(
                "vLLM reads the processor's cores by lscpu, and there is none on the PATH: install util-linux"
            )
    vllm = _import()
    check_shape(vllm.AsyncLLM, CALLS)
    if spec.cfg.rollout.in_flight == "keep":
        check_shape(vllm.AsyncScheduler, SCHEDULER_CALLS)
        check_shape(vllm.Request, {"update_block_hashes": ()})
    on_cpu = vllm.current_platform.is_cpu()
    if spec.device == ("cuda" if on_cpu else "cpu"):
        raise ConfigError("run.device", spec.device, "this vLLM is built for the other: use that, or set up again")
    cache = kv_bytes(spec)
    args = engine_args(spec, cache if on_cpu else 0)
    if spec.takes_adapter:
        args["lora_target_modules"] = adapted_layers(spec.policy)  # else the embeddings', too
    args = _accepted(vllm.AsyncEngineArgs, args, spec.cfg.rollout.engine)
    args["weight_transfer_config"] = vllm.WeightTransferConfig(backend=TRANSFERS[spec.backend])
    config = _configured(vllm.AsyncEngineArgs, args, spec.cfg.rollout.engine)
    check_parsers(spec.cfg.episode)
    if spec.takes_adapter:
        check_family(vllm, config.model_config, spec.cfg.learn.lora_rank)
    if on_cpu and spec.cfg.rollout.tensor_parallel == 1:
        fork_one_process(config.parallel_config, vllm.OMPProcessManager(config).cpu_lists[:1])
    return VllmEngine(vllm.AsyncLLM.from_vllm_config(config, disable_log_stats=True), vllm, spec, on_cpu)


def check_parsers(episode: EpisodeConfig) -> None:
    """Raise ConfigError for a parser that vLLM does not have."""
    for field, (module, manager) in _PARSERS.items():
        if name := getattr(episode, field):
            known = getattr(import_module(module), manager).list_registered()
            if name not in known:
                way_out = _nearest(name, known) or f"it has {', '.join(sorted(known))}"
                raise ConfigError(f"episode.{field}", name, f"vLLM has no such parser; {way_out}")


def check_family(vllm: Any, model: Any, rank: int) -> None:
    """Raise ConfigError where vLLM has no place for adapters in the class that it has for a policy."""
    kind, _ = vllm.ModelRegistry.resolve_model_cls(model.architectures, model)
    if not vllm.supports_lora(kind):
        way_out = f"vLLM takes no adapters for {kind.__name__}: use 0, which trains all weights"
        raise ConfigError("learn.lora_rank", rank, way_out)


def check_shape(owner: type, calls: Mapping[str, tuple[str, ...]]) -> None:
    """Raise EngineError unless ``owner`` has these methods with these parameters."""
    for name, wanted in calls.items():
        method = getattr(owner, name, None)
        if method is None:
            raise EngineError(f"this vLLM has no {owner.__name__}.{name}; {_WAY_OUT}")
        known = inspect.signature(method).parameters
        if missing := [p for p in wanted if p not in known]:
            raise EngineError(f"{owner.__name__}.{name} takes no {', '.join(missing)} here; {_WAY_OUT}")


def _import() -> SimpleNamespace:
    """The names of vLLM that are used here. EngineError where one is missing."""
    try:
        found = {name: getattr(import_module(module), name) for module, names in _NAMES.items() for name in names}
    except (ImportError, AttributeError) as error:
        raise EngineError(f"vLLM cannot be used: {error}; run scripts/setup.sh") from error
    return SimpleNamespace(**found)


def _accepted(kind: Any, args: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Raises ConfigError for options that vLLM does not have, EngineError for arguments of ours."""
    known = inspect.signature(kind).parameters.keys()
    own, other = known - REFUSED.keys(), "use one of its engine arguments, directly in rollout.engine"
    unknown = [
        ConfigError(f"rollout.engine.{name}", options[name], f"vLLM has no such option; {_nearest(name, own) or other}")
        for name in sorted(options.keys() - known)
    ]
    raise_all(unknown)
    if missing := sorted(args.keys() - known):
        raise EngineError(f"{kind.__name__} takes no {', '.join(missing)} here; {_WAY_OUT}")
    return args


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name.replace("-", "_"), known, n=1)
    return f"did you mean {near[0]}?" if near else ""


def _configured(kind: Any, args: dict[str, Any], options: Mapping[str, Any]) -> Any:
    """vLLM's configuration. Raises ConfigError for options that it refuses."""
    try:
        return kind(**args).create_engine_config()
    except Exception as error:  # whatever vLLM raises about the values that it is given
        if not options:
            raise
        pydantic = error.errors() if hasattr(error, "errors") else ()
        told = "; ".join(": ".join((*map(str, one["loc"]), one["msg"])) for one in pydantic) or error
        raise ConfigError("rollout.engine", dict(options), f"vLLM refuses it: {one_line(told, 300)}") from error
