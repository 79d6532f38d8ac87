"""The adapter to vLLM's API and the engine's processes, without an engine."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from engine_stub import CFG, poll, wait_until

from overlap.config.learn import LearnConfig
from overlap.config.rollout import EpisodeConfig
from overlap.core import Spoken
from overlap.core.errors import ConfigError, EngineError
from overlap.generate import engine as generate_api
from overlap.generate import start as generate_start
from overlap.generate.client import EngineClient
from overlap.generate.engine import AnswerReader
from overlap.generate.service import EngineSpec, Sampling
from overlap.generate.start import check_shape
from overlap.placement.devices import Devices
from overlap.placement.engine_memory import cpu_block_tokens
from overlap.placement.seats import place
from overlap.process.run_environment import shared_memory_names

VLLM = SimpleNamespace(
    LoRARequest=lambda *names: names,
    RequestOutputKind=SimpleNamespace(FINAL_ONLY="final"),
    SamplingParams=lambda **params: params,
    TokensPrompt=lambda **prompt: prompt,
    WeightTransferUpdateRequest=lambda update_info: update_info,
)


class Shape:
    def pause(self, *, mode="keep"): ...


@pytest.mark.promise("engine-door")
def test_an_unknown_shape_of_vllm_is_an_error_that_names_the_difference():
    check_shape(Shape, {"pause": ("mode",)})
    with pytest.raises(EngineError, match=r"no Shape\.resume"):
        check_shape(Shape, {"resume": ()})
    with pytest.raises(EngineError, match=r"Shape\.pause takes no clear_cache"):
        check_shape(Shape, {"pause": ("mode", "clear_cache")})


def test_an_output_without_weight_versions_or_with_an_unknown_end_is_an_error():
    with pytest.raises(EngineError, match="which weights"):
        generate_api._spans("r", SimpleNamespace(token_ids=[1], weight_versions=None))
    with pytest.raises(EngineError, match="'repetition'"):
        generate_api._finish("r", "repetition")


PIECES = (b"\n\nab", b"\xc3", b"\xa9", b"x", b"y\n\nz", b"!", b" ")


@pytest.mark.parametrize(
    ("prompt", "said", "stop", "text", "kept", "finish"),
    [
        ((0,), (3, 4), ("\n\n",), "xy\n\n", 2, "stop"),  # the rest of a token behind the stop string
        ((0,), (3, 4), ("\n\nz", "y\n"), "xy\n", 2, "stop"),
        ((0,), (3, 3), ("\n\n",), "xx", 2, "length"),
        ((0, 1), (3, 5, 4, 3, 6), ("\n\n",), "x!y\n\n", 3, "stop"),  # as if it had ended there
        ((0, 1), (2, 3, 5), ("\n\n",), "\ufffdx!", 3, "length"),
        ((0, 1), (3, 5, 3), ("x!",), "x!", 2, "stop"),
        ((0, 1), (3, 5), (), "x!", 2, "length"),
    ],
)
def test_a_text_is_that_of_the_sampled_tokens_up_to_a_stop_string(prompt, said, stop, text, kept, finish):
    """vLLM's own text of an answer behind half a character holds the prompt, and stop strings in it."""
    asked = []

    class Speaking:
        def get_tokenizer(self):
            return SimpleNamespace(decode=lambda ids, **_: b"".join(PIECES[id] for id in ids).decode(errors="replace"))

        async def generate(self, tokens, params, id, priority):
            asked.append(params)
            spans = [SimpleNamespace(version="0", start=0, end=1), SimpleNamespace(version="1", start=1, end=len(said))]
            output = SimpleNamespace(token_ids=said, logprobs=SimpleNamespace(logprobs=[-1.0] * len(said)), text="no")
            output.finish_reason, output.weight_versions = "stop" if stop and finish == "stop" else "length", spans
            yield SimpleNamespace(finished=True, outputs=[output])

    engine = generate_api.VllmEngine(Speaking(), VLLM, spec(), True)
    found = asyncio.run(engine.sample(prompt, "g0s0", Sampling(0.6, 9, stop, 0, 1, 0.95)))
    assert (asked[0]["temperature"], asked[0]["top_p"]) == (0.6, 0.95)
    assert (found.text, found.token_ids, found.finish) == (text, said[:kept], finish)
    assert len(found.logprobs) == found.spans[-1].end == kept
    assert (asked[0]["stop"], asked[0]["detokenize"]) == (([], False) if 1 in prompt else (list(stop), bool(stop)))


def spec(landing="recompute", *, sleeps=False, **learn):
    cfg = replace(CFG, rollout=replace(CFG.rollout, in_flight=landing, temperature=0.7), learn=LearnConfig(**learn))
    backend = "ipc" if sleeps else "shm"
    return EngineSpec(cfg, Path("policy"), "cpu", backend, 0, load_weights=not sleeps, sleeps=sleeps, engines=1)


@pytest.mark.parametrize("sleeps", [True, False])
def test_probes_are_made_at_the_sampling_temperature_and_weights_of_its_own_are_version_0(sleeps):
    llm = Llm()
    asyncio.run(generate_api.VllmEngine(llm, None, spec(sleeps=sleeps), True).prepare())
    probes = ("collective_rpc", "overlap_probe_at", {"args": (0.7,)})
    assert llm.calls == ([probes] if sleeps else [probes, ("update_weight_version", "0")])


class Llm:
    """Says what it was asked to forget."""

    def __init__(self, forgets=True):
        self.calls, self._forgets = [], forgets

    def get_tokenizer(self):
        return None

    def __getattr__(self, name):
        async def call(*args, **kwargs):
            self.calls.append((name, *args, kwargs) if kwargs else (name, *args) if args else name)
            return self._forgets

        return call


@pytest.mark.promise("landing")
@pytest.mark.parametrize(("landing", "all_of_it"), [("recompute", True), ("drain", True), ("keep", False)])
def test_a_load_forgets_what_old_weights_computed_before_anything_is_sampled(landing, all_of_it):
    llm = Llm()
    asyncio.run(generate_api.VllmEngine(llm, VLLM, spec(landing), True).commit_weights(3))
    assert llm.calls[-1] == ("reset_prefix_cache", {"reset_running_requests": all_of_it})
    forgetful = generate_api.VllmEngine(Llm(forgets=False), VLLM, spec(landing), True)
    with pytest.raises(EngineError, match="version 3: vLLM did not forget"):
        asyncio.run(forgetful.commit_weights(3))


@pytest.mark.parametrize(("landing", "all_of_it"), [("recompute", True), ("keep", False)])
def test_an_engine_sleeps_without_ending_a_request_and_forgets_its_cache_when_that_is_back(landing, all_of_it):
    llm = Llm()
    engine = generate_api.VllmEngine(llm, VLLM, spec(landing, sleeps=True), False)

    async def main():
        for _ in range(2):
            await engine.sleep()
            await engine.wake("weights")
            await engine.begin_weights()
            await engine.receive_weights({"names": []})
            await engine.commit_weights(3)
            await engine.wake("cache")

    asyncio.run(main())
    load = ["start_weight_update", ("update_weights", {"names": []}), ("finish_weight_update", "3")]
    awake = [("reset_prefix_cache", {"reset_running_requests": all_of_it}), ("wake_up", {"tags": ["kv_cache"]})]
    slept = ("sleep", {"level": 2, "mode": "keep"})  # not even the first ones are kept: the learner sends all anew
    assert llm.calls == 2 * [slept, ("wake_up", {"tags": ["weights"]}), *load, *awake]


def test_an_engine_that_takes_adapters_keeps_its_weights_asleep_and_names_the_adapter_in_every_request(tmp_path):
    asked = []

    class Serving(Llm):
        async def generate(self, tokens, params, id, **how):
            asked.append(how)
            yield SimpleNamespace(finished=True, prompt_logprobs=[None, {2: SimpleNamespace(logprob=-1.0)}])

    async def main(**learn):
        llm = Serving()
        engine = generate_api.VllmEngine(llm, VLLM, spec(sleeps=True, **learn), False)
        await engine.prepare()
        await engine.sleep()
        assert await engine.prompt_logprobs((1, 2), "probe") == [-1.0]
        return llm.calls

    probes = ("collective_rpc", "overlap_probe_at", {"args": (0.7,)})
    for rank, keeps, level in ((4, [("collective_rpc", "overlap_keep_adapter")], 1), (0, [], 2)):
        calls = asyncio.run(main(lora_rank=rank))
        assert calls == [probes, *keeps, ("sleep", {"level": level, "mode": "keep"})]
    first = generate_api._FIRST
    assert asked == [{"priority": first, "lora_request": ("adapter", 1, "adapter")}, {"priority": first}]


@pytest.mark.parametrize(
    ("learn", "standalone", "place"),
    [
        ({"lora_rank": 12}, False, 16),
        ({"lora_rank": 12}, True, 0),
        ({"lora_rank": 0}, False, 0),
    ],
)
def test_an_engine_has_a_place_for_an_adapter_beside_the_policys_own_weights_where_one_is_sent(
    tmp_path, learn, standalone, place
):
    cfg = replace(CFG, learn=LearnConfig(**learn))
    args = generate_start.engine_args(EngineClient(cfg, tmp_path, tmp_path, standalone=standalone)._spec, 0)
    assert args.get("max_lora_rank", 0) == place
    assert args.get("enable_lora", False) == bool(place)
    assert args["load_format"] == ("auto" if place or standalone else "dummy")


@pytest.mark.parametrize(("family", "taken"), [("Qwen2ForCausalLM", True), ("BloomForCausalLM", False)])
def test_a_family_of_which_vllm_takes_no_adapters_is_refused(family, taken):
    models = pytest.importorskip("vllm.model_executor.models")
    kind = models.ModelRegistry.models[family].load_model_cls()
    registry = SimpleNamespace(resolve_model_cls=lambda names, model: (kind, names[0]))
    vllm = SimpleNamespace(ModelRegistry=registry, supports_lora=models.supports_lora)
    refused = pytest.raises(ConfigError, match=r"^learn\.lora_rank=8: vLLM takes no adapters for Bloom.*: use 0")
    with nullcontext() if taken else refused:
        generate_start.check_family(vllm, SimpleNamespace(architectures=[family]), 8)


def test_a_cache_that_is_not_forgotten_is_an_error():
    engine = generate_api.VllmEngine(Llm(forgets=False), None, spec(sleeps=True), False)
    with pytest.raises(EngineError, match="did not forget what its KV cache held"):
        asyncio.run(engine.wake("cache"))


def spec_on(tmp_path, count, **rollout):
    cfg = replace(CFG, rollout=replace(CFG.rollout, **rollout))
    return EngineClient(cfg, tmp_path, tmp_path, placement=place(cfg, Devices.gpus(count)))._spec


def test_an_engine_that_sleeps_on_several_gpus_does_without_the_all_reduce_that_does_not_outlive_a_sleep(tmp_path):
    cfg = replace(CFG, learn=replace(CFG.learn, ranks=2))
    shared = replace(cfg, rollout=replace(cfg.rollout, tensor_parallel=2))
    spec = EngineClient(shared, tmp_path, tmp_path, placement=place(shared, Devices.gpus(2)))._spec
    args = generate_start.engine_args(spec, 0)
    assert (args["enable_sleep_mode"], args["disable_custom_all_reduce"]) == (True, True)
    for alone in (spec_on(tmp_path, 1), spec_on(tmp_path, 3, tensor_parallel=2)):
        args = generate_start.engine_args(alone, 0)
        assert "disable_custom_all_reduce" not in args
        assert args["enable_sleep_mode"] == (alone.backend == "ipc")


def test_the_cache_of_a_cpu_holds_all_sequences_and_a_context_that_the_policy_lacks_is_refused(tmp_path):
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}

    def cache(context=None, cfg=CFG, engines=1):
        (tmp_path / "config.json").write_text(json.dumps(sizes | {"max_position_embeddings": context}))
        return generate_start.kv_bytes(replace(EngineClient(cfg, tmp_path, tmp_path)._spec, engines=engines))

    token = 2 * 2 * 2 * 16 * 2  # keys and values, layers, heads, width, bytes
    assert cache() >= token * 4 * 16
    assert cache() % (token * cpu_block_tokens(CFG)) == 0
    many = replace(CFG, rollout=replace(CFG.rollout, max_sequences=10**9))
    assert 3 < cache(cfg=many) / cache(cfg=many, engines=4) < 5  # what is free is for all of them
    assert cache(16)
    with pytest.raises(ConfigError, match=r"model\.response_tokens=16: the policy has a context of 15 tokens"):
        cache(15)


def test_an_engine_process_ends_with_its_driver_and_names_what_it_shares():
    token = f"ovl-test-{os.getpid()}"
    code = (
        "import overlap.generate.host, signal\n"
        "from multiprocessing import get_context\n"
        "from multiprocessing.shared_memory import SharedMemory\n"
        "memory, lock = SharedMemory(create=True, size=64), get_context('spawn').Lock()\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    driver_code = (
        "import os, subprocess, sys\n"
        "env = os.environ | {'OVERLAP_ENGINE': '1', 'OVERLAP_PARENT': str(os.getpid())}\n"
        f"child = subprocess.Popen([sys.executable, '-uc', {code!r}], env=env, stdout=-1)\n"
        "print(child.stdout.readline(), child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    env = os.environ | {"OVERLAP_LIFE": token}
    with subprocess.Popen(
        [sys.executable, "-c", driver_code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        pid = int(driver.stdout.readline().split()[-1])
        child = os.pidfd_open(pid)
        assert len(shared_memory_names(token)) == 2
        driver.kill()
        assert poll(child, 10), "the child outlived its driver"
        os.close(child)
    wait_until(lambda: not shared_memory_names(token))  # by the resource tracker, which nobody killed


TOOLS = '[{"function":{"name":"f"},"type":"function"}]'


class Tokenizer:
    all_special_ids = (9,)

    def decode(self, ids: Any, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        assert not skip_special_tokens
        return " ".join(map(str, ids))


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stands where vLLM's parsers stand; what it was given."""
    given: list[Any] = []

    class Parser:
        def __init__(self, tokenizer: Any, tools: Any, **how: Any) -> None:
            self.tools = tools
            given.extend(how.items())

        def parse(self, text: str, request: Any, auto: bool, ids: Any) -> Any:
            given.append((text, request.tools, auto, list(ids)))
            if text == "7":
                raise KeyError("broken")
            calls = [SimpleNamespace(name="f", arguments='{"a": 1}')] if auto else None
            return "hm", None if auto else text, calls

    class Manager:
        @staticmethod
        def get_parser(**names: Any) -> Any:
            if names["tool_parser_name"] == "none-such":
                raise TypeError("which has not been registered")
            return Parser

    class Asked:
        def __init__(self, messages: Any, tools: Any = None, tool_choice: Any = None) -> None:
            self.tools = tools

    protocol = "vllm.entrypoints.openai.chat_completion.protocol"
    for name, more in (("vllm.parser", {"ParserManager": Manager}), (protocol, {"ChatCompletionRequest": Asked})):
        parts = name.split(".")
        for end in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(parts[end - 1]))
        module = ModuleType(name)
        vars(module).update(more)
        monkeypatch.setitem(sys.modules, name, module)
    return given


def test_a_parser_gets_what_was_sampled_with_its_marks_but_for_the_one_that_ends_it(vllm) -> None:
    spoken = AnswerReader(Tokenizer(), "hermes", "").read("text", (1, 2, 9), TOOLS)
    assert spoken == Spoken("", "hm", (("f", '{"a": 1}'),))
    ((text, tools, auto, ids),) = vllm
    assert (text, auto, ids) == ("1 2", True, [1, 2])
    assert tools[0]["function"]["name"] == "f"
    assert AnswerReader(Tokenizer(), "", "qwen3").read("text", (1, 2), "[]") == Spoken("1 2", "hm")


def test_what_a_parser_cannot_read_is_text_and_said_to_be(vllm) -> None:
    assert AnswerReader(Tokenizer(), "hermes", "").read("seven", (7,), TOOLS) == Spoken("seven", failed=True)


def test_a_parser_that_is_not_there_is_told_by_its_field(vllm) -> None:
    with pytest.raises(
        ConfigError, match=r"episode.tool_parser='none-such': which has not been registered; use a parser"
    ):
        AnswerReader(Tokenizer(), "none-such", "")


def test_a_parser_that_vllm_does_not_have_is_refused_by_its_field(monkeypatch: pytest.MonkeyPatch) -> None:
    has = SimpleNamespace(list_registered=lambda: ["hermes", "qwen3"])
    managers = SimpleNamespace(ToolParserManager=has, ReasoningParserManager=has)
    monkeypatch.setattr(generate_start, "import_module", lambda name: managers)
    generate_start.check_parsers(EpisodeConfig(tool_parser="hermes", reasoning_parser="qwen3"))
    with pytest.raises(ConfigError, match=r"^episode.tool_parser='hermse': vLLM has no such parser; did you mean her"):
        generate_start.check_parsers(EpisodeConfig(tool_parser="hermse"))
    with pytest.raises(ConfigError, match=r"^episode.reasoning_parser='x': .*; it has hermes, qwen3"):
        generate_start.check_parsers(EpisodeConfig(tool_parser="hermes", reasoning_parser="x"))


def test_an_engine_without_lscpu_says_that_before_vllm_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(generate_start, "_import", lambda: pytest.fail("vLLM is imported"))
    with pytest.raises(EngineError, match="lscpu, and there is none on the PATH: install util-linux"):
        generate_start.open_engine(SimpleNamespace(device="cpu"))  # type: ignore[arg-type]


def test_float32_is_float32_in_an_engines_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of vLLM's attention kernels on GPUs Triton's takes float32, and Triton multiplies that as TF32 by default."""
    knobs = pytest.importorskip("triton").knobs
    monkeypatch.delenv("TRITON_F32_DEFAULT", raising=False)
    assert knobs.language.fp32_default is None
    monkeypatch.setenv("TRITON_F32_DEFAULT", generate_start.engine_environment("cuda")["TRITON_F32_DEFAULT"])
    assert knobs.language.fp32_default == "ieee"
