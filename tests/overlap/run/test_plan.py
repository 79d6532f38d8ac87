"""The figures that a person sees before a run starts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from chats import Letters

from overlap.config.load import load_config
from overlap.core.errors import ConfigError
from overlap.placement.activations import DecoderShape
from overlap.placement.memory import memory_plan
from overlap.placement.planned_run import PlannedRun, Seats
from overlap.placement.shapes import ModelShape
from overlap.placement.table import memory_lines
from overlap.record.kept_samples import KeptSamples
from overlap.run.plan import episode_lines, plan_lines
from overlap.run.run_inputs import RunInputs

SMOLLM2 = ModelShape(
    134_500_000, DecoderShape(layers=30, hidden=576, inner=1536, queries=576, keys=192), 49152, 49152 * 576, tied=True
)
CPU = Seats((), ((),), (0,), turns=False, backend="shm")
SPLIT = Seats((0, 0), ((0,),), (1,), turns=False, backend="nccl")
SHARED = Seats((0,), ((0,),), (0,), turns=True, backend="ipc")
NEW, KEPT = None, KeptSamples(Path("kept.jsonl"), "digest", {}, {})


def planned(
    *settings: str, seats: Seats = CPU, rollouts: KeptSamples | None = NEW, template: str = "x"
) -> dict[str, str]:
    cfg, tokenizer = load_config(None, list(settings)), SimpleNamespace(chat_template=template)
    inputs = RunInputs(cfg, object(), Path(), tokenizer, (1, 2), (3,))  # type: ignore[arg-type]
    critic = SMOLLM2 if cfg.learn.advantage == "gae" else None
    teacher = replace(SMOLLM2, parameters=1_700_000_000) if cfg.learn.reference else None
    asked = PlannedRun(cfg, SMOLLM2, critic, rollouts is None, teacher)
    return dict(plan_lines(inputs, asked, seats, memory_plan(asked, seats), rollouts))


RATE = "adapters usually take 10 times as much"
LINES: list[tuple[str, str, dict[str, Any], str, str]] = [
    # line, settings, seats and others, how it begins ("": there is none), how it ends
    ("chat template", "", {}, "", ""),
    ("chat template", "model.policy=base", {"template": ""},
     "model.policy=base has none, prompts are plain text: use an instruct policy", "beside it"),
    ("staleness", "rollout.max_staleness=1", {"seats": SHARED}, "asynchronous: samples up to 1 policy version old; "
     "at most 16 groups in flight", "sleep with the engine and are continued"),
    ("staleness", "rollout.max_staleness=2", {"seats": SPLIT}, "asynchronous: samples up to 2 policy versions",
     "flight"),
    ("staleness", "", {"seats": SHARED}, "on-policy; at most 8 groups in flight", "flight"),
    ("correction", "rollout.max_staleness=1 learn.correction=none", {}, "none: stale samples are learned",
     "(learn.correction)"),
    ("correction", "learn.correction=none", {}, "", ""),
    ("offload", "learn.offload=sleep", {"seats": SPLIT}, "learn.offload=sleep has no effect: engine and learner", ""),
    ("offload", "learn.offload=sleep", {"seats": SHARED}, "", ""),
    ("KL penalty", "learn.kl_coef=0.1", {}, "against the initial policy, k3 in the loss, coefficient 0.1", "0.1"),
    ("KL penalty", "learn.kl_coef=1 learn.kl_in=reward learn.advantage=none learn.reference=teacher", {},
     "against teacher (1,700 M parameters), k1 in the reward, coefficient 1; rewards are", "(learn.advantage=none)"),
    ("engine", "rollout.engine.block_size=64 rollout.engine.kv_cache_dtype=fp8", {},
     "block_size=64, kv_cache_dtype=fp8; another type of KV", "(above 0.05 nats)"),
    ("engine", "rollout.engine.quantization=fp8_per_block", {}, "quantization=fp8_per_block; memory is planned as if "
     "weights were not quantized", ""),
    ("engine", "rollout.engine.speculative_config.method=ngram", {}, "speculative_config={'method': 'ngram'}", "'}"),
    ("engine", "rollout.engine.speculative_config.method=eagle", {}, "speculative_config={'method': 'eagle'}; memory "
     "is planned without the draft model, which is not trained", ""),
    ("verifier", "", {}, "1 sandbox worker, at most 4 s of CPU time per test", ""),
    ("verifier", "cluster.address=10.0.0.1:6379", {}, "1 sandbox worker here, and the free cores of every further node "
     "of the cluster at 10.0.0.1:6379, at most 4 s of CPU time per test", ""),
    ("verifier", "", {"rollouts": KEPT}, "", ""),
    ("rollouts", "", {"rollouts": KEPT}, "0 samples of kept.jsonl; no engine, no verifier and no parity check", ""),
    ("algorithm", "", {}, "GRPO (advantage within the prompt's group), loss ppo, off-policy correction tis, no KL", ""),
    ("algorithm", "learn.advantage=leave_one_out learn.kl_coef=0.1", {}, "RLOO (", "correction tis"),
    ("algorithm", "learn.advantage=gae", {}, "PPO (advantage by a critic, GAE), loss ppo", "no KL penalty"),
    ("algorithm", "learn.advantage=none learn.kl_coef=1", {}, "distillation (", "correction tis"),
    ("algorithm", "learn.advantage=mine:f learn.correction=none", {}, "advantage by mine:f, loss ppo, no", "penalty"),
    ("learner", "learn.ranks=2 learn.updates_per_step=4 learn.schedule=cosine", {"seats": SPLIT}, "2 ranks, ZeRO stage "
     "2, AdamW, 4 optimizer updates per step", "learning rate 1e-06 (cosine decay)"),
    ("prompts", "data.drop_solved=0.9", {}, "2 to train on, 1 held out; ", "epochs once solved at 0.9 or more"),
    ("critic", "learn.advantage=gae critic.warmup_steps=5", {},
     "begins as the policy (134 M parameters), learning rate 1e-05, trained alone for the first 5 steps", ""),
    ("adapters", "learn.lora_rank=16", {}, "LoRA of rank 16 on all linear layers, 4.9 M parameters trained; ", RATE),
    ("adapters", "learn.lora_rank=16 learn.lr=1e-5", {}, "LoRA of rank 16",
     "4.9 M parameters trained; each weight sync sends the adapter alone, 10 MB"),
    ("memory", "", {}, "machine needs ", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "given", "begin", "end"), LINES)
def test_the_plan_says_what_is_special_about_a_run(
    name: str, settings: str, given: dict[str, Any], begin: str, end: str
) -> None:
    line = planned(*settings.split(), **given).get(name, "")
    assert line.startswith(begin)
    assert line.endswith(end)
    assert bool(line) == bool(begin)


@pytest.mark.parametrize("native", [False, True])
def test_a_processor_that_is_slower_in_the_run_s_number_type_is_told(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overlap.run.plan.bfloat16_is_fast", lambda: native)
    assert ("number type" in planned("model.dtype=bfloat16")) != native
    assert "number type" not in planned("model.dtype=float32")


@pytest.mark.parametrize("engine", [True, False])
def test_a_run_from_kept_samples_counts_no_engine(engine: bool) -> None:
    ((_, told),) = memory_lines(memory_plan(PlannedRun(load_config(), SMOLLM2, engine=engine), CPU), CPU)
    assert ("engine" in told) == engine


MASKED = "a truncated episode is masked (learn.truncated=mask)"


def test_who_rolls_episodes_out_is_told_with_their_bounds():
    class Talking:
        async def rollout(self, prompt, chat, sandbox): ...

    def lines(task, *settings):
        cfg = load_config(None, ["episode.tokens=900", "episode.turns=3", *settings])
        return episode_lines(SimpleNamespace(cfg=cfg, task=task, tokenizer=Letters()))

    assert lines(object()) == []
    ((name, line),) = lines(Talking())
    assert name == "episodes"
    assert line.endswith("Talking.rollout: up to 3 turns, 900 tokens after the prompt, 600 s; " + MASKED)
    (_, line), _ = lines(object(), "episode.command=./agent --fast")
    assert line.startswith("'./agent --fast': up to 3 turns")
    assert "may use up" not in line
    ((_, line),) = lines(Talking(), "learn.truncated=zero")
    assert line.endswith("900 tokens after the prompt, 600 s")
    ((_, line),) = lines(Talking(), "episode.tokens=0")
    assert line.endswith(
        f"256 tokens after the prompt, 600 s; {MASKED}; one response may use up all tokens (episode.tokens)"
    )
    (_, line), *_ = lines(Talking(), "episode.command=./agent")
    assert "'./agent', in place of " in line
    assert line.partition(": ")[0].endswith("Talking.rollout")


class _Once(Letters):
    """Its template takes one message and no answer, as that of a model for one purpose."""

    def apply_chat_template(self, messages, *args, **kwargs):
        if len(messages) > 1:
            raise ValueError("one message at most")
        return super().apply_chat_template(messages, *args, **kwargs)


class _Silent(Letters):
    """Its template shows no calls."""

    def rendered(self, messages, number):
        bare = [{name: value for name, value in message.items() if name != "tool_calls"} for message in messages]
        return super().rendered(bare, number)


@pytest.mark.parametrize(
    ("parser", "tokenizer", "told"),
    [
        (
            "",
            Letters(),
            r"^read by nothing, so a call stays text: set episode.tool_parser; .* shows one as '\[.*ovl7tool.*\]'",
        ),
        ("", _Silent(), r"^read by nothing, .* shows none"),
        ("llama3_json", _Silent(), r"^read by episode.tool_parser=llama3_json, but .* nothing says that it fits"),
        ("hermes", Letters(), r"^read by episode.tool_parser=hermes, which has to fit: .* shows one as '\[.*ovl7tool"),
    ],
)
@pytest.mark.parametrize("endpoint", [True, False])
def test_what_reads_the_calls_of_tools_is_told_beside_a_call_as_the_template_shows_it(
    parser: str, tokenizer: Letters, told: str, endpoint: bool
) -> None:
    class Asking:
        async def rollout(self, prompt, chat, sandbox): ...

    Asking.endpoint = endpoint
    cfg = load_config(None, [f"episode.tool_parser={parser}"] if parser else [])
    lines = dict(episode_lines(SimpleNamespace(cfg=cfg, task=Asking(), tokenizer=tokenizer)))
    if endpoint or parser:
        assert re.search(told, lines["tool calls"])
        assert "counted (episode/unread)" in lines["tool calls"]
    else:
        assert "tool calls" not in lines


def test_a_chat_template_that_takes_no_dialog_is_refused():
    def planned(tokenizer):
        cfg = load_config(None, ["episode.command=./agent"])
        return episode_lines(SimpleNamespace(cfg=cfg, task=object(), tokenizer=tokenizer))

    assert [name for name, _ in planned(Letters())] == ["episodes", "tool calls"]
    with pytest.raises(ConfigError, match=r"model.policy.* takes no dialog of several turns .*one message at most"):
        planned(_Once())
