"""The figures that a person sees before a run starts."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from chats import Letters

from overlap.config import load_config
from overlap.errors import ConfigError
from overlap.placement import ModelShape, Seats, memory_plan, memory_table, seating_here
from overlap.placement.activations import DecoderShape
from overlap.prepare.plan import (
    _critic,
    _nobody_sleeps,
    _uncorrected,
    _verifier,
    _without_template,
    activations_line,
    adapters_lines,
    asked_for,
    episode_lines,
    number_lines,
    plan_lines,
    prompts_line,
)
from overlap.prepare.run_inputs import RunInputs
from overlap.record import Rollouts


def test_a_policy_without_a_chat_template_is_told_with_a_way_out():
    cfg = SimpleNamespace(model=SimpleNamespace(policy="base"))
    prepared = SimpleNamespace(cfg=cfg, tokenizer=SimpleNamespace(chat_template=None))
    ((_, line),) = _without_template(prepared)  # type: ignore[arg-type]
    assert line.startswith("model.policy=base has none, prompts are plain text: use an instruct policy")
    prepared.tokenizer.chat_template = "yes"
    assert _without_template(prepared) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("staleness", "correction", "told"), [(1, "none", True), (0, "none", False), (1, "tis", False)]
)
def test_stale_samples_without_a_correction_are_told(staleness: int, correction: str, told: bool):
    cfg = load_config(None, [f"rollout.max_staleness={staleness}", f"learn.correction={correction}"])
    assert bool(_uncorrected(cfg)) == told


@pytest.mark.parametrize(
    ("offload", "turns", "told"), [("sleep", False, True), ("sleep", True, False), ("cpu", False, False)]
)
def test_an_offload_to_make_room_for_nobody_is_told(offload: str, turns: bool, told: bool):
    cfg = load_config(None, [f"learn.offload={offload}"])
    assert bool(_nobody_sleeps(cfg, Seats((0, 0), ((0,),), (1,), turns, "nccl"))) == told


def test_a_run_on_a_cluster_tells_where_programs_are_judged():
    ((_, line),) = _verifier(load_config(None, ["cluster.address=10.0.0.1:6379"]), None)
    where = "1 worker(s) here, and the free cores of every further node of the cluster at 10.0.0.1:6379"
    assert line == f"{where}, 4 s CPU per test"


@pytest.mark.parametrize("kept", [False, True])
def test_a_run_from_kept_samples_counts_no_engine_and_no_verifier(tmp_path: Path, kept: bool):
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    tokenizer = SimpleNamespace(chat_template="yes")
    prepared = RunInputs(load_config(None, []), SimpleNamespace(), tmp_path, tokenizer, (), ())  # type: ignore[arg-type]
    rollouts = Rollouts(tmp_path / "rollouts.jsonl", "digest", {}, {}) if kept else None
    asked = asked_for(prepared, rollouts)
    seats = seating_here(prepared.cfg)(prepared.cfg)
    memory = memory_plan(asked, seats)
    lines = dict(plan_lines(prepared, asked, seats, memory, rollouts))
    assert lines["memory"].startswith("machine at most ")
    told = "\n".join(memory_table(memory))
    assert ("engine" in told) == (not kept)
    assert ("verifier" in lines, "rollouts" in lines) == (not kept, kept)
    assert not kept or "no engine, no verifier" in lines["rollouts"]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ([], "at most 5.6 GiB on each learner rank (8192 tokens, kept for all layers)"),
        (
            ["learn.checkpointing=always"],
            "at most 0.5 GiB on each learner rank (8192 tokens, recomputed per layer)",
        ),
        (["model.dtype=float32"], "at most 0.9 GiB on each learner rank (8192 tokens, recomputed per layer)"),
    ],
)
def test_the_plan_says_what_a_pass_keeps(settings: list[str], line: str):
    smollm2 = DecoderShape(layers=30, hidden=576, inner=1536, queries=576, keys=192)
    assert activations_line(load_config(None, settings), smollm2) == line


@pytest.mark.parametrize(
    ("bound", "end"), [(0, "1 held out"), (0.9, "left out of later epochs once solved at 0.9 or more")]
)
def test_the_plan_says_when_prompts_are_left_out(bound: float, end: str):
    cfg = load_config(None, [f"data.drop_solved={bound}"])
    line = prompts_line(SimpleNamespace(cfg=cfg, train=(1, 2), heldout=(3,)))  # type: ignore[arg-type]
    assert line.startswith("2 to train on, 1 held out")
    assert line.endswith(end)


def test_a_critic_is_told():
    cfg = load_config(None, ["learn.advantage=gae", "critic.warmup_steps=5"])
    critic = ModelShape(2**30, DecoderShape(0, 0, 0, 0, 0), 0, 0, tied=True)
    assert _critic(cfg, critic) == [
        ("critic", "the policy (1,074 M parameters), lr 1e-05, trained alone for 5 step(s)")
    ]
    assert _critic(cfg, None) == []


def test_adapters_are_told_with_a_word_on_a_rate_that_is_too_small_for_them():
    assert adapters_lines(load_config(None, []), 7) == []
    ((name, line),) = adapters_lines(load_config(None, ["learn.lora_rank=16"]), 4_880_000)
    assert (name, line.partition(";")[0]) == (
        "adapters",
        "LoRA of rank 16 on all linear layers, 4.9 M parameters trained",
    )
    assert line.endswith("learn.lr=1e-06 is a rate for all weights, adapters usually take 10 times as much")
    ((_, line),) = adapters_lines(load_config(None, ["learn.lora_rank=16", "learn.lr=1e-5"]), 4_880_000)
    assert line.endswith("trained")


def test_a_processor_that_does_the_run_s_numbers_in_software_is_told():
    here, gpu = (
        Seats((), ((),), (0,), turns=False, backend="shm"),
        Seats((80,), ((0,),), (0,), turns=True, backend="ipc"),
    )
    half, full = load_config(None, []), load_config(None, ["model.dtype=float32"])
    ((name, line),) = number_lines(half, here, native=False)
    assert (name, line.rpartition(": ")[2]) == ("number type", "use model.dtype=float32")
    assert number_lines(half, here, native=True) == number_lines(full, here, native=False) == []
    assert number_lines(half, gpu, native=False) == []


def test_who_rolls_episodes_out_is_told_with_their_bounds():
    class Talking:
        async def rollout(self, prompt, chat, sandbox): ...

    def lines(task, *settings):
        cfg = load_config(None, ["episode.tokens=900", "episode.turns=3", *settings])
        return episode_lines(SimpleNamespace(cfg=cfg, task=task, tokenizer=Letters()))

    assert lines(object()) == []
    ((name, line),) = lines(Talking())
    assert name == "episodes"
    assert line.endswith("Talking.rollout: up to 3 turns, 900 tokens after a prompt, 600 s")
    ((_, line),) = lines(object(), "episode.command=./agent --fast")
    assert line.startswith("'./agent --fast': up to 3 turns")
    assert "may use up" not in line
    ((_, line),) = lines(Talking(), "episode.tokens=0")
    assert line.endswith("256 tokens after a prompt, 600 s; one response may use up all tokens (episode.tokens)")
    ((_, line),) = lines(Talking(), "episode.command=./agent")
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

    assert [name for name, _ in planned(Letters())] == ["episodes"]
    assert [line for name, line in planned(_Bare()) if name == "chat template"] == [
        "it has no place for tools: a policy learns of them only what the messages say"
    ]
    with pytest.raises(ConfigError, match=r"model.policy.* takes no dialog of several turns .*one message at most"):
        planned(_Once())
