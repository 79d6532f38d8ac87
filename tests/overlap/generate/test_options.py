"""Options of ``rollout.engine``: what arrives in vLLM, what is refused by name, what by its value."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from shapes import SMALL

from overlap import cli
from overlap.config.earlier import changes
from overlap.config.learn import ENGINE_RANKS
from overlap.config.load import load_config
from overlap.config.rollout import _NO_DRAFT_MODEL
from overlap.errors import ConfigError
from overlap.generate import start as generate_start
from overlap.generate import vllm_source
from overlap.generate.client import EngineClient
from overlap.generate.options import _NOT_ASYNC, _ONLINE, REFUSED, check_options
from overlap.generate.vllm_source import VllmSource
from overlap.placement.devices import Devices
from overlap.placement.engine_memory import token_bytes
from overlap.placement.seats import place

VLLM = VllmSource()
INSTALLED = VLLM.options()
needs_vllm = pytest.mark.skipif(not INSTALLED, reason="vLLM is not installed")

PASSED: dict[str, Any] = {
    "attention_backend": "triton_attn",
    "attention_config": {"flash_attn_version": 2},
    "block_size": 64,
    "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4]},
    "cudagraph_capture_sizes": [1, 8],
    "decode_context_parallel_size": 2,
    "disable_custom_all_reduce": True,
    "enable_chunked_prefill": True,
    "enable_expert_parallel": True,
    "enable_prefix_caching": False,
    "enforce_eager": True,
    "kernel_config": {"moe_backend": "triton"},
    "kv_cache_dtype": "fp8_e4m3",
    "kv_cache_dtype_skip_layers": ["0", "1"],
    "language_model_only": True,
    "limit_mm_per_prompt": {"image": 0},
    "log_level": "DEBUG",
    "long_prefill_token_threshold": 512,
    "max_num_batched_tokens": 4096,
    "max_num_scheduled_tokens": 2048,
    "model_impl": "transformers",
    "moe_backend": "deep_gemm",
    "numa_bind": True,
    "optimization_level": 2,
    "performance_mode": "throughput",
    "prefix_caching_hash_algo": "xxhash",
    "quantization": "fp8_per_channel",
    "quantization_config": {"ignore": ["lm_head"]},
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3},
    "use_fp64_gumbel": True,
    "watermark": 0.01,
}
BY_NAME: dict[str, tuple[Any, str]] = {
    "model": ("other", "use model.policy"),
    "load_format": ("safetensors", "the learner sends its weights"),
    "tokenizer": ("other", "use model.policy"),
    "hf_overrides": ({"rope_theta": 1}, "use model.policy"),
    "dtype": ("float16", "use model.dtype"),
    "seed": (3, "use run.seed"),
    "max_model_len": (99, "use model.prompt_tokens, model.response_tokens"),
    "max_num_seqs": (99, "use rollout.max_sequences"),
    "tensor_parallel_size": (2, "use rollout.tensor_parallel"),
    "data_parallel_size": (2, "rollout.replicas for more engines"),
    "pipeline_parallel_size": (2, "rollout.replicas for more engines"),
    "gpu_memory_utilization": (0.9, "use rollout.gpu_memory"),
    "kv_cache_memory_bytes": (2**30, "use rollout.gpu_memory"),
    "logprobs_mode": ("raw_logprobs", "the samples would not be the policy's own"),
    "override_generation_config": ({"top_k": 5}, "the samples would not be the policy's own"),
    "logits_processors": (["a:B"], "the samples would not be the policy's own"),
    "enable_mamba_cache_stochastic_rounding": (True, "the samples would not be the policy's own"),
    "enable_lora": (True, "use learn.lora_rank"),
    "worker_extension_cls": ("a.B", "a worker of ours"),
    "scheduler_cls": ("a.B", "follows from rollout.in_flight"),
    "scheduling_policy": ("fcfs", "the oldest groups go first"),
    "enable_sleep_mode": (True, "shares GPUs with the learner"),
    "weight_transfer_config": ({"backend": "nccl"}, "use rollout.weight_backend"),
    "cpu_offload_gb": (4, "use rollout.tensor_parallel"),
    "kv_transfer_config": ({"kv_connector": "OffloadingConnector"}, "would outlive a load"),
    "enable_eplb": (True, "use enable_expert_parallel alone"),
    "max_num_queued_reqs": (5, "none may be turned away"),
    "disable_log_stats": (False, "statistics are off"),
    "served_model_name": ("x", "nothing here uses it"),
    "speculative_config.synthetic_acceptance_length": (2.5, "a rate that is made up"),
    "speculative_config.draft_load_config": ({}, "the draft's own checkpoint"),
    "mamba_config.enable_stochastic_rounding": (True, "which the learner does not repeat"),
}
BY_VALUE = [
    ("blocksize=64", "blocksize=64: vLLM has no such option; did you mean block_size?"),
    ("kv-cache-dtype=fp8", "did you mean kv_cache_dtype?"),
    ("zzz=1", "see the engine arguments of the installed version"),
    ("vllm={enforce_eager: true}", "vLLM has no such option; its options stand directly in rollout.engine"),
    ("_api_process_count=2", "vLLM has no such option"),
    ("seeed=1", "vLLM has no such option; see the engine arguments"),  # never one that is refused
    ("block_size=large", "block_size='large': use a whole number"),
    ("block_size=true", "use a whole number"),
    ("watermark=much", "use a number"),
    ("watermark=1e-2", "use a number; YAML reads quotes, and 1e-2 without a point, as a string: write 16, or 1.0e-2"),
    ("block_size='64'", "use a whole number; YAML reads quotes"),
    ("watermark=.nan", "watermark=nan: use a number"),
    ("additional_config={a: [.inf]}", "additional_config={'a': [inf]}: use a mapping"),
    ("enforce_eager=1", "use true or false"),
    ("cudagraph_capture_sizes=8", "use a list"),
    ("limit_mm_per_prompt=8", "use a mapping"),
    ("compilation_config=3", "use a mapping"),
    ("kv_cache_dtype=fp9", "kv_cache_dtype='fp9': did you mean fp8?"),
    ("kv_cache_dtype=2", "use one of auto, float16, bfloat16, fp8,"),
    ("attention_backend=none_such", "use one of FLASH_ATTN,"),
    ("optimization_level=9", "use one of 0, 1, 2, 3"),
    ("optimization_level=true", "use one of 0, 1, 2, 3"),
    ("quantization=fp8", "needs a checkpoint that is: use one of fp8_per_block, fp8_per_channel, fp8_per_tensor"),
    ("quantization=awq", "the learner's weights are not quantized"),
    ("speculative_config=ngram", "use a mapping"),
    ("speculative_config.method=ngramm", "speculative_config.method='ngramm': did you mean ngram?"),
    ("speculative_config.num_tokens=3", "vLLM's speculative_config has no such option; did you mean num_speculative_"),
    ("speculative_config.method=extract_hidden_states", "it drafts nothing"),
    ("speculative_config={method: ngram, rejection_sample_method: synthetic}", "a rate that is made up"),
    ("compilation_config.cudagraph_capture_size=[1]", "did you mean cudagraph_capture_sizes?"),
    ("disable_custom_all_reduce=false", "use true, or leave it out"),
]


def options(*settings: str) -> Any:
    return load_config(None, [f"rollout.engine.{setting}" for setting in settings])


def args_of(cfg: Any, tmp_path: Path, gpus: int = 1, kv_bytes: int = 0) -> dict[str, Any]:
    spec = EngineClient(cfg, tmp_path, tmp_path, placement=place(cfg, Devices.gpus(gpus)))._spec
    return generate_start.engine_args(spec, kv_bytes)


@pytest.mark.parametrize("name", PASSED)
def test_an_option_of_vllm_arrives_as_it_is(name: str, tmp_path: Path) -> None:
    cfg = options(f"{name}={json.dumps(PASSED[name])}")
    check_options(cfg, "cuda")
    assert args_of(cfg, tmp_path)[name] == PASSED[name]


def test_all_of_them_arrive_together_and_a_resumed_run_may_not_change_them(tmp_path: Path) -> None:
    cfg = load_config({"rollout": {"engine": PASSED}})
    check_options(cfg, "cuda")
    assert PASSED.items() <= args_of(cfg, tmp_path).items()
    (found,) = changes(json.loads(json.dumps(cfg.to_dict())), options())
    assert (found.field, found.allowed) == ("rollout.engine", False)


@pytest.mark.promise("engine-door")
@needs_vllm
@pytest.mark.parametrize("name", BY_NAME)
def test_an_option_that_would_break_a_promise_is_refused_with_the_reason_and_what_to_use(name: str) -> None:
    value, says = BY_NAME[name]
    with pytest.raises(ConfigError, match=rf"^rollout\.engine\.{name}=") as error:
        check_options(options(f"{name}={json.dumps(value)}"), "cuda")
    assert says in str(error.value)


@needs_vllm
@pytest.mark.parametrize(("setting", "says"), BY_VALUE)
def test_an_unknown_name_or_a_value_that_does_not_fit_is_refused(setting: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_options(options(setting), "cuda")
    assert says in str(error.value)


def test_what_a_cpu_or_kept_responses_cannot_have_is_refused() -> None:
    check_options(options("enforce_eager=false"), "cuda")
    with pytest.raises(ConfigError, match="an engine on a CPU is not compiled"):
        check_options(options("enforce_eager=false"), "cpu")
    for name in ("method", "model"):  # vLLM takes either
        ngram = options(f"speculative_config.{name}=ngram")
        check_options(ngram, "cuda")
        assert not ngram.rollout.has_draft_model
        kept = replace(ngram, rollout=replace(ngram.rollout, in_flight="keep"))
        with pytest.raises(ConfigError, match=r"use rollout\.in_flight=recompute"):
            check_options(kept, "cuda")


@pytest.mark.parametrize("tokens", [-32, 0, 7, 16, 48])
def test_an_engine_on_a_cpu_has_blocks_of_whole_multiples(tokens: int) -> None:
    with pytest.raises(ConfigError, match=rf"block_size={tokens}: .* blocks of 32 tokens or a multiple of that"):
        check_options(options(f"block_size={tokens}"), "cpu")
    check_options(options("block_size=96"), "cpu")
    check_options(options("block_size=null"), "cpu")


@pytest.mark.parametrize("draft", ["drafts/one", "./one", "~/one", "owner/name"])
def test_a_draft_model_that_an_engine_would_not_find_in_its_own_directory_is_refused(draft: str) -> None:
    with pytest.raises(ConfigError, match="give the checkpoint's whole path"):
        check_options(options(f"speculative_config={{model: {draft}, num_speculative_tokens: 2}}"), "cuda")


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(ConfigError, match=r"use run\.seed; rollout\.engine\.dtype='half': use model\.dtype"):
        check_options(options("seed=1", "dtype=half"), "cuda")


@pytest.mark.parametrize("sleeps", [True, False])
def test_a_draft_model_is_read_from_its_checkpoint_and_stays_while_the_engine_sleeps(
    sleeps: bool, tmp_path: Path
) -> None:
    cfg = options("speculative_config={method: eagle3, model: /drafts/one, num_speculative_tokens: 2}")
    check_options(cfg, "cuda")
    args = args_of(cfg, tmp_path, gpus=1 if sleeps else 2)
    assert args["load_format"] == "auto"
    assert args_of(options("speculative_config.method=ngram"), tmp_path)["load_format"] == "dummy"
    assert args["enable_sleep_mode"] == sleeps == ("sleep_preserve_parameter_names" in args)


def test_a_block_of_another_size_is_that_of_the_cache_on_a_cpu(tmp_path: Path) -> None:
    assert args_of(options("block_size=128"), tmp_path, gpus=0, kv_bytes=2**30)["block_size"] == 128


@needs_vllm
def test_what_an_engine_is_started_with_cannot_be_replaced_unseen(tmp_path: Path) -> None:
    """Of its arguments only defaults of ours, which change no result, may be options too."""
    own = {"weight_transfer_config"}  # ``open_engine`` adds it
    cases = [
        ("rollout.in_flight=keep", 0, 2**30),
        ("rollout.in_flight=keep", 2, 0),
        ("rollout.tensor_parallel=2 learn.ranks=2", 2, 0),
        ("rollout.engine.speculative_config.method=eagle", 1, 0),
    ]
    for settings, gpus, kv_bytes in cases:
        own |= args_of(load_config(None, settings.split()), tmp_path, gpus, kv_bytes).keys()
    own.remove("speculative_config")
    assert own <= INSTALLED.keys()
    ours = {"block_size", "max_num_batched_tokens", "enable_prefix_caching", "enforce_eager"}
    assert own - REFUSED.keys() == ours | {"disable_custom_all_reduce"}  # of which false is refused


@needs_vllm
def test_each_field_of_the_installed_vllm_was_judged() -> None:
    """A new version asks here what its new fields do to samples, weights and devices."""
    inside = {name for name in REFUSED if "." in name}
    assert REFUSED.keys() - inside <= INSTALLED.keys()
    for name in inside:
        option, field = name.split(".")
        assert field in VLLM.options([option]), name
    more = """
        additional_config cp_kv_cache_interleave_size cpu_distributed_timeout_seconds dcp_comm_backend
        dcp_kv_cache_interleave_size dcp_q_replicate disable_cascade_attn disable_hybrid_kv_cache_manager
        distributed_timeout_seconds enable_batch_sharded_sampling enable_flashinfer_autotune enable_hc_sp
        enable_layerwise_nvtx_tracing enable_log_requests enable_mamba_shared_prefix_checkpoint
        expert_placement_strategy fail_on_environ_validation gdn_prefill_backend ir_op_priority jit_monitor_mode
        jit_monitor_verbose kda_decode_backend kda_prefill_backend linear_backend
        long_prefill_token_threshold_adaptive mamba_backend mamba_block_size mamba_cache_dtype mamba_cache_mode
        mamba_config mamba_ssm_cache_dtype mamba_ssu_algorithm max_cudagraph_capture_size numa_bind_cpus
        numa_bind_nodes prefix_cache_retention_interval prefix_match_unit replayssm_buffer_len
        scheduler_reserve_full_isl skip_mm_profiling sleep_mode_offload_cudagraph sparse_indexer_topk_backend
        swa_bounded_replay use_replayssm
    """
    assert INSTALLED.keys() - REFUSED.keys() == PASSED.keys() | set(more.split())


@needs_vllm
def test_what_is_read_of_vllms_source_is_what_vllm_has() -> None:
    arguments = pytest.importorskip("vllm.engine.arg_utils")
    quantization = pytest.importorskip("vllm.config.quantization")
    names = [name for name in inspect.signature(arguments.AsyncEngineArgs).parameters if not name.startswith("_")]
    assert sorted(INSTALLED) == sorted(names)
    assert not [name for name, kind in INSTALLED.items() if kind.open and name not in REFUSED]
    assert {*VLLM.table(*_ONLINE), "online"} == set(quantization.ONLINE_QUANT_SHORTHAND_NAMES)
    made = inspect.getsource(arguments.EngineArgs.__post_init__)
    mappings = [name for name, kind in INSTALLED.items() if kind.classes and name not in REFUSED]
    converted = {name for name in mappings if f"isinstance(self.{name}, dict)" in made}
    assert set(mappings) - converted == {"quantization_config"}  # which has a function of its own there


@needs_vllm
def test_lists_that_are_kept_here_are_those_of_the_installed_vllm() -> None:
    speculative, lora = pytest.importorskip("vllm.config.speculative"), pytest.importorskip("vllm.config.lora")
    flat = {kind: set(get_args(getattr(speculative, kind))) for kind in ("EagleModelTypes", "NgramGPUTypes")}
    methods = set(get_args(speculative.SpeculativeMethod))
    assert methods - flat["EagleModelTypes"] - flat["NgramGPUTypes"] - {"draft_model", "dspark"} == {*_NOT_ASYNC}
    assert {*_NO_DRAFT_MODEL} <= methods
    assert get_args(lora.MaxLoRARanks) == ENGINE_RANKS


@pytest.mark.parametrize("there", ["nothing", "another form"])
def test_where_vllm_cannot_be_read_the_engine_is_the_judge_of_all_that_is_not_refused_by_name(
    there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "vllm"
    (folder / "engine").mkdir(parents=True)
    if there == "another form":
        (folder / "engine" / "arg_utils.py").write_text("class Arguments: ...\n")
    spec = SimpleNamespace(submodule_search_locations=[str(folder)])
    monkeypatch.setattr(vllm_source.PathFinder, "find_spec", lambda name: spec)
    check_options(options("block_size=64", "anything=1", "quantization=awq"), "cuda")
    odd = options("speculative_config=ngram", "kv_cache_dtype={a: 1}", "block_size=x")
    check_options(odd, "cuda")
    assert token_bytes(odd, SMALL) == SMALL.decoder.layers * SMALL.kv_width
    with pytest.raises(ConfigError, match=r"use run\.seed"):
        check_options(options("seed=1"), "cuda")


@needs_vllm
@pytest.mark.parametrize("command", [["train", "--dry-run"], ["train", "--dry-run", "--devices=1x80"], ["train"]])
def test_a_wrong_option_is_one_line_before_anything_is_started(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = [*command, "rollout.engine.speculative_config.method=ngrams", f"run.dir={tmp_path / 'out'}"]
    assert cli.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "rollout.engine.speculative_config.method='ngrams': did you mean ngram?" in line
    assert not (tmp_path / "out").exists()
