"""The figures that a person sees before a run starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from chats import Letters

from overlap.config import load_config
from overlap.errors import ConfigError
from overlap.placement import ModelShape, PlannedRun, Seats, memory_plan, memory_table
from overlap.placement.activations import DecoderShape
from overlap.prepare import plan, plan_lines
from overlap.prepare.plan import episode_lines
from overlap.prepare.run_inputs import RunInputs
from overlap.record import Rollouts

SMOLLM2 = ModelShape(
    134_500_000, DecoderShape(layers=30, hidden=576, inner=1536, queries=576, keys=192), 49152, 49152 * 576, tied=True
)
CPU = Seats((), ((),), (0,), turns=False, backend="shm")
SPLIT = Seats((0, 0), ((0,),), (1,), turns=False, backend="nccl")
SHARED = Seats((0,), ((0,),), (0,), turns=True, backend="ipc")
NEW, KEPT = None, Rollouts(Path("rollouts.jsonl"), "digest", {}, {})


def planned(*settings: str, seats: Seats = CPU, rollouts: Rollouts | None = NEW, template: str = "x") -> dict[str, str]:
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
    ("leases", "rollout.max_staleness=1", {"seats": SHARED}, "at most 16 groups in flight", "sleep with the engine, "
     "and go on"),
    ("leases", "rollout.max_staleness=1", {"seats": SPLIT}, "at most 16 groups", "at most 1 policy version(s) old"),
    ("leases", "", {"seats": SHARED}, "at most 8 groups", "at most 0 policy version(s) old"),
    ("correction", "rollout.max_staleness=1 learn.correction=none", {}, "none: stale samples", "(learn.correction)"),
    ("correction", "learn.correction=none", {}, "", ""),
    ("correction", "rollout.max_staleness=1", {}, "", ""),
    ("offload", "learn.offload=sleep", {"seats": SPLIT}, "no effect: engine and learner share no GPU", ""),
    ("offload", "learn.offload=sleep", {"seats": SHARED}, "", ""),
    ("offload", "learn.offload=cpu", {"seats": SPLIT}, "", ""),
    ("KL penalty", "", {}, "", ""),
    ("KL penalty", "learn.kl_coef=0.1", {}, "against the policy as the run began, k3 in the loss, times 0.1", "0.1"),
    ("KL penalty", "learn.kl_coef=0.1 learn.kl_in=reward learn.kl_estimator=k3", {}, "against the policy as the run "
     "began, k3 in the reward, times 0.1; in the reward k3 has not the gradient of a KL", "learn.kl_estimator=k1 has"),
    ("KL penalty", "learn.kl_coef=1 learn.kl_in=reward learn.advantage=none learn.reference=teacher", {},
     "against teacher (1,700 M parameters), k1 in the reward, times 1; rewards teach", "(learn.advantage=none)"),
    ("engine", "", {}, "", ""),
    ("engine", "rollout.engine.block_size=64", {"rollouts": KEPT}, "", ""),
    ("engine", "rollout.engine.block_size=64 rollout.engine.kv_cache_dtype=fp8", {},
     "block_size=64, kv_cache_dtype=fp8; another type of KV", "(rollout.parity_bound is 0.05 nats)"),
    ("engine", "rollout.engine.kv_cache_dtype=bfloat16", {}, "kv_cache", "_dtype=bfloat16"),
    ("engine", "rollout.engine.quantization=fp8_per_block", {}, "quantization=fp8_per_block; memory is planned as if "
     "weights were not quantized", ""),
    ("engine", "rollout.engine.speculative_config.method=ngram", {}, "speculative_config={'method': 'ngram'}", "'}"),
    ("engine", "rollout.engine.speculative_config.method=eagle", {}, "speculative_config={'method': 'eagle'}; memory "
     "is planned without the draft model, which is not trained", ""),
    ("verifier", "", {}, "1 worker(s), 4 s CPU per test", ""),
    ("verifier", "cluster.address=10.0.0.1:6379", {}, "1 worker(s) here, and the free cores of every further node of "
     "the cluster at 10.0.0.1:6379, 4 s CPU per test", ""),
    ("verifier", "", {"rollouts": KEPT}, "", ""),
    ("rollouts", "", {"rollouts": KEPT}, "0 samples of rollouts.jsonl; no engine, no verifier and no parity check", ""),
    ("rollouts", "", {}, "", ""),
    ("activations", "", {}, "at most 5.6 GiB on each learner rank (8192 tokens, kept for all layers)", ""),
    ("activations", "learn.checkpointing=always", {}, "at most 0.5 GiB on each", "(8192 tokens, recomputed per layer)"),
    ("activations", "model.dtype=float32", {}, "at most 0.9 GiB on each", "(8192 tokens, recomputed per layer)"),
    ("prompts", "", {}, "2 to train on, 1 held out", "1 held out"),
    ("prompts", "data.drop_solved=0.9", {}, "2 to train on, 1 held out; ", "epochs once solved at 0.9 or more"),
    ("critic", "", {}, "", ""),
    ("critic", "learn.advantage=gae critic.warmup_steps=5", {},
     "the policy (134 M parameters), lr 1e-05, trained alone for 5 step(s)", ""),
    ("adapters", "", {}, "", ""),
    ("adapters", "learn.lora_rank=16", {}, "LoRA of rank 16 on all linear layers, 4.9 M parameters trained; ", RATE),
    ("adapters", "learn.lora_rank=16 learn.lr=1e-5", {}, "LoRA of rank 16",
     "4.9 M parameters trained; each sync sends the adapter alone, 10 MB"),
    ("adapters", "learn.lora_rank=16 learn.lora_sync=merged learn.lr=1e-5", {}, "LoRA of rank 16",
     "in which rounding to bfloat16 keeps most of the first changes back (sync/applied_share)"),
    ("adapters", "learn.lora_rank=16 learn.lora_sync=merged learn.lr=1e-5 model.dtype=float32", {}, "LoRA of rank 16",
     "each sync sends the merged weights, 538 MB"),
    ("memory", "", {}, "machine at most ", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "given", "begin", "end"), LINES)
def test_the_plan_says_what_is_special_about_a_run(
    name: str, settings: str, given: dict[str, Any], begin: str, end: str
) -> None:
    line = planned(*settings.split(), **given).get(name, "")
    assert line.startswith(begin)
    assert line.endswith(end)
    assert bool(line) == bool(begin)


@pytest.mark.parametrize(
    ("native", "settings", "seats", "told"),
    [
        (False, "", CPU, True),
        (True, "", CPU, False),
        (False, "model.dtype=float32", CPU, False),
        (False, "", SHARED, False),
    ],
)
def test_a_processor_that_is_slower_in_the_run_s_number_type_is_told(
    native: bool, settings: str, seats: Seats, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "bfloat16_is_fast", lambda: native)
    line = planned(*settings.split(), seats=seats).get("number type", "")
    assert line.endswith(": use model.dtype=float32") == told == bool(line)


@pytest.mark.parametrize("engine", [True, False])
def test_a_run_from_kept_samples_counts_no_engine(engine: bool) -> None:
    told = "\n".join(memory_table(memory_plan(PlannedRun(load_config(), SMOLLM2, engine=engine), CPU)))
    assert ("engine" in told) == engine


MASKED = "(one that needs more is not learned from: learn.truncated=mask)"


def test_who_rolls_episodes_out_is_told_with_their_bounds():
    class Talking:
        async def rollout(self, prompt, chat, sandbox): ...

    def lines(task, *settings):
        cfg = load_config(None, ["episode.tokens=900", "episode.turns=3", *settings])
        return episode_lines(SimpleNamespace(cfg=cfg, task=task, tokenizer=Letters()))

    assert lines(object()) == []
    ((name, line),) = lines(Talking())
    assert name == "episodes"
    assert line.endswith("Talking.rollout: up to 3 turns, 900 tokens after a prompt, 600 s " + MASKED)
    (_, line), (name, asked) = lines(object(), "episode.command=./agent --fast")
    assert name == "requests"
    assert "have no effect (episode.structured=ignore); no tool call is read" in asked
    (_, asked) = lines(object(), "episode.command=a", "episode.structured=refuse", "episode.tool_parser=hermes")[1]
    assert "are refused (episode.structured=refuse); n, logprobs" in asked
    assert line.startswith("'./agent --fast': up to 3 turns")
    assert "may use up" not in line
    ((_, line),) = lines(Talking(), "learn.truncated=zero")
    assert line.endswith("900 tokens after a prompt, 600 s")
    ((_, line),) = lines(Talking(), "episode.tokens=0")
    assert line.endswith(
        f"256 tokens after a prompt, 600 s {MASKED}; one response may use up all tokens (episode.tokens)"
    )
    (_, line), _ = lines(Talking(), "episode.command=./agent")
    assert "'./agent', in place of " in line
    assert line.partition(": ")[0].endswith("Talking.rollout")


class _Once(Letters):
    """Its template takes one message and no answer, as that of a model for one purpose."""

    def apply_chat_template(self, messages, *args, **kwargs):
        if len(messages) > 1:
            raise ValueError("one message at most")
        return super().apply_chat_template(messages, *args, **kwargs)


class _Bare(Letters):
    """Its template has no place for tools."""

    def apply_chat_template(self, messages, tools=None, *args, **kwargs):
        return super().apply_chat_template(messages, None, *args, **kwargs)


def test_what_a_chat_template_does_with_episodes_is_in_the_plan_and_one_that_takes_none_is_refused():
    def planned(tokenizer):
        cfg = load_config(None, ["episode.command=./agent"])
        return episode_lines(SimpleNamespace(cfg=cfg, task=object(), tokenizer=tokenizer))

    assert [name for name, _ in planned(Letters())] == ["episodes", "requests"]
    assert [line for name, line in planned(_Bare()) if name == "chat template"] == [
        "it has no place for tools: a policy learns of them only what the messages say"
    ]
    with pytest.raises(ConfigError, match=r"model.policy.* takes no dialog of several turns .*one message at most"):
        planned(_Once())
