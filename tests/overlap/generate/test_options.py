"""Options of ``rollout.engine``: what arrives in vLLM, what is refused by name, what by its value."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from overlap import cli
from overlap.config.learn import ENGINE_RANKS
from overlap.config.load import changes, load_config
from overlap.config.rollout import _NO_DRAFT_MODEL
from overlap.core.errors import ConfigError
from overlap.generate import start as generate_start
from overlap.generate.client import EngineClient
from overlap.generate.options import _NOT_ASYNC, _ONLINE, REFUSED, check_options
from overlap.placement.devices import Devices
from overlap.placement.seats import place

PASSED: dict[str, Any] = {
    "block_size": 64,
    "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4]},
    "disable_custom_all_reduce": True,
    "kv_cache_dtype": "fp8_e4m3",
    "max_num_batched_tokens": 4096,
    "quantization": "fp8_per_channel",
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3},
}
BY_NAME: dict[str, tuple[Any, str]] = {
    "model": ("other", "use model.policy"),
    "dtype": ("float16", "use model.dtype"),
    "seed": (3, "use run.seed"),
    "max_model_len": (99, "use model.prompt_tokens, model.response_tokens"),
    "logprobs_mode": ("raw_logprobs", "the samples would not be the policy's own"),
    "worker_extension_cls": ("a.B", "a worker of ours"),
    "scheduler_cls": ("a.B", "follows from rollout.in_flight"),
    "weight_transfer_config": ({"backend": "nccl"}, "how weights travel follows from who sits where: leave it out"),
    "speculative_config.synthetic_acceptance_length": (2.5, "the samples would not be the policy's own"),
    "mamba_config.enable_stochastic_rounding": (True, "the samples would not be the policy's own"),
}
BY_VALUE = [
    ("quantization=fp8", "needs a quantized checkpoint, and the learner sends plain weights: use fp8_per_channel"),
    ("speculative_config={method: ngram, rejection_sample_method: synthetic}", "the samples would not be the policy's"),
    ("disable_custom_all_reduce=false", "use true, or leave it out"),
]


def options(*settings: str) -> Any:
    return load_config(None, [f"rollout.engine.{setting}" for setting in settings])


def args_of(cfg: Any, tmp_path: Path, gpus: int = 1, kv_bytes: int = 0) -> dict[str, Any]:
    spec = EngineClient(cfg, tmp_path, tmp_path, placement=place(cfg, Devices.gpus(gpus)))._spec
    return generate_start.engine_args(spec, kv_bytes)


def test_options_of_vllm_arrive_as_they_are_and_a_resumed_run_may_not_change_them(tmp_path: Path) -> None:
    cfg = load_config({"rollout": {"engine": PASSED}})
    check_options(cfg, "cuda")
    assert PASSED.items() <= args_of(cfg, tmp_path).items()
    (found,) = changes(json.loads(json.dumps(cfg.to_dict())), options())
    assert (found.field, found.allowed) == ("rollout.engine", False)


@pytest.mark.promise("engine-door")
@pytest.mark.parametrize("name", BY_NAME)
def test_an_option_that_would_break_a_promise_is_refused_with_the_reason_and_what_to_use(name: str) -> None:
    value, says = BY_NAME[name]
    with pytest.raises(ConfigError, match=rf"^rollout\.engine\.{name}=") as error:
        check_options(options(f"{name}={json.dumps(value)}"), "cuda")
    assert says in str(error.value)


@pytest.mark.parametrize(("setting", "says"), BY_VALUE)
def test_a_value_that_would_break_a_promise_is_refused(setting: str, says: str) -> None:
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
    with pytest.raises(ConfigError, match="give the checkpoint's full path"):
        check_options(options(f"speculative_config={{model: {draft}, num_speculative_tokens: 2}}"), "cuda")


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
    ours = {"block_size", "max_num_batched_tokens", "enable_prefix_caching", "enforce_eager"}
    assert own - REFUSED.keys() == ours | {"disable_custom_all_reduce"}  # of which false is refused


def test_lists_that_are_kept_here_are_those_of_the_installed_vllm() -> None:
    known = inspect.signature(pytest.importorskip("vllm.engine.arg_utils").AsyncEngineArgs).parameters.keys()
    assert {name.partition(".")[0] for name in REFUSED} | PASSED.keys() <= known
    quantization = pytest.importorskip("vllm.config.quantization")
    assert {*_ONLINE} <= {*quantization.ONLINE_QUANT_SHORTHAND_NAMES, "online"}
    speculative, lora = pytest.importorskip("vllm.config.speculative"), pytest.importorskip("vllm.config.lora")
    flat = {kind: set(get_args(getattr(speculative, kind))) for kind in ("EagleModelTypes", "NgramGPUTypes")}
    methods = set(get_args(speculative.SpeculativeMethod))
    assert methods - flat["EagleModelTypes"] - flat["NgramGPUTypes"] - {"draft_model", "dspark"} == {*_NOT_ASYNC}
    assert {*_NO_DRAFT_MODEL} <= methods
    assert get_args(lora.MaxLoRARanks) == ENGINE_RANKS


def test_an_option_that_vllm_does_not_have_is_refused_with_the_one_that_is_meant() -> None:
    class AsyncEngineArgs:
        def __init__(self, model: str, seed: int, block_size: int) -> None: ...

    wrong = {"blocksize": 64, "seeed": 1, "vllm": {"block_size": 64}}
    with pytest.raises(ConfigError) as error:
        generate_start._accepted(AsyncEngineArgs, {"model": "x", **wrong}, wrong)
    assert str(error.value).splitlines() == [
        "rollout.engine.blocksize=64: vLLM has no such option; did you mean block_size?; "
        "rollout.engine.seeed=1: vLLM has no such option; use one of its engine arguments, directly in rollout.engine; "
        "rollout.engine.vllm={'block_size': 64}: vLLM has no such option; use one of its engine arguments, directly in "
        "rollout.engine"
    ]


@pytest.mark.parametrize("command", [["train", "--dry-run"], ["train", "--dry-run", "--devices=1x80"], ["train"]])
def test_a_wrong_option_is_one_line_before_anything_is_started(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = [*command, "rollout.engine.seed=3", f"run.dir={tmp_path / 'out'}"]
    assert cli.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "rollout.engine.seed=3: use run.seed" in line
    assert not (tmp_path / "out").exists()
