"""The plan of a run in figures, before anything is started: what ``--dry-run`` prints and a run's banner shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from overlap.activations import DecoderShape, activation_bytes, checkpoints, decoder_shape, trained_parameters
from overlap.config import Config
from overlap.prepared import Prepared
from overlap.record import Rollouts

GIB = 2**30


def plan(prepared: Prepared, rollouts: Rollouts | None = None) -> list[tuple[str, str]]:
    """Lines "what, value" for a person. With ``rollouts``, no engine and no verifier will start."""
    cfg = prepared.cfg
    r, le = cfg.rollout, cfg.learn
    shape = policy_shape(prepared.policy)
    critic = None if prepared.critic is None else policy_shape(prepared.critic)
    decoder = decoder_shape(_text_config(prepared.policy))
    trained = trained_parameters(decoder, shape["parameters"], le.lora_rank)
    return [
        ("policy", f"{cfg.model.policy} ({shape['parameters'] / 1e6:,.0f} M parameters, {cfg.model.dtype})"),
        *_without_template(prepared),
        ("prompts", prompts_line(prepared)),
        *left_out_lines(prepared),
        *([("references", prepared.references)] if prepared.references else []),
        ("step", f"{r.groups_per_step} groups x {r.samples_per_group} samples = {cfg.samples_per_step} trajectories"),
        ("leases", f"{cfg.leases} groups, staleness at most {r.max_staleness}"),
        *_uncorrected(cfg),
        (
            "learner",
            f"{le.ranks} rank(s), ZeRO {le.zero_stage}, {le.updates_per_step} update(s) per step, lr {le.lr:g}",
        ),
        *adapters_lines(cfg, trained),
        *_critic(cfg, critic),
        ("evaluation", evaluation_line(cfg, len(prepared.heldout))),
        *_verifier(cfg, rollouts),
        ("memory", memory_line(cfg, shape, critic, engine=rollouts is None, trained=trained)),
        ("activations", activations_line(cfg, decoder)),
    ]


def adapters_lines(cfg: Config, trained: int) -> list[tuple[str, str]]:
    """What is trained in the weights' place, and whether by a rate that is meant for these."""
    rank, lr = cfg.learn.lora_rank, cfg.learn.lr
    if not rank:
        return []
    slow = f"; learn.lr={lr:g} is a rate for all weights, adapters usually take 10 times as much" if lr < 1e-5 else ""
    return [("adapters", f"LoRA of rank {rank} on all linear layers, {trained / 1e6:,.1f} M parameters trained{slow}")]


def _critic(cfg: Config, shape: dict[str, Any] | None) -> list[tuple[str, str]]:
    if shape is None:
        return []
    c = cfg.critic
    alone = f", alone for {c.steps_alone} step(s)" if c.steps_alone else ""
    return [
        ("critic", f"{c.policy or 'the policy'} ({shape['parameters'] / 1e6:,.0f} M parameters), lr {c.lr:g}{alone}")
    ]


def _verifier(cfg: Config, rollouts: Rollouts | None) -> list[tuple[str, str]]:
    if rollouts is None:
        return [("verifier", f"{cfg.verify.workers} worker(s), {cfg.verify.cpu_s:g} s CPU per test")]
    told = f"{len(rollouts.known)} samples of {rollouts.path}; no engine, no verifier, and no parity to check"
    return [("rollouts", told)]


def _uncorrected(cfg: Config) -> list[tuple[str, str]]:
    if not cfg.rollout.max_staleness or cfg.learn.correction != "none":
        return []
    return [("correction", "none: stale samples count as if the learner's policy had drawn them (learn.correction)")]


def prompts_line(prepared: Prepared) -> str:
    """How many there are, and whether solved ones are left out."""
    bound = prepared.cfg.data.drop_solved
    solved = f"; left out of later epochs once solved at {bound:g} or more" if bound else ""
    return f"{len(prepared.train)} to train on, {len(prepared.heldout)} held out{solved}"


def left_out_lines(prepared: Prepared) -> list[tuple[str, str]]:
    """A line per split and reason for the rows of the data that are not used."""
    return [("left out", f"{split}: {line}") for split, intake in prepared.intakes.items() for line in intake.lines()]


def evaluation_line(cfg: Config, problems: int) -> str:
    """What is evaluated, and when."""
    samples = cfg.run.eval_samples
    if not (samples and problems):
        return "none: " + ("no held-out prompts" if samples else "run.eval_samples=0")
    when = f"every {cfg.run.eval_every} steps, " if cfg.run.eval_every else ""
    rates = " and ".join(f"pass@{k}" for k in sorted({1, cfg.eval_k}))
    drawn = f"{problems} problems x {samples} samples at temperature {cfg.eval_temperature:g}"
    return f"{rates} of {drawn}, before, {when}and after the training"


def _without_template(prepared: Prepared) -> list[tuple[str, str]]:
    if getattr(prepared.tokenizer, "chat_template", None):
        return []
    way_out = "use an instruct policy, or put a chat_template.jinja beside it"
    return [("chat template", f"model.policy={prepared.cfg.model.policy} has none, prompts are plain text: {way_out}")]


def policy_shape(policy: Path) -> dict[str, Any]:
    """Figures of a Hugging Face checkpoint: parameters, layers, kv_width (bytes per token and layer at 2 bytes).

    Families call their sizes differently, and wrap a text model in others: a figure that is not found is 0.
    """
    shape = decoder_shape(_text_config(policy))
    return {"parameters": sum(_tensor_sizes(policy)), "layers": shape.layers, "kv_width": 2 * shape.keys}


def _text_config(policy: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((policy / "config.json").read_text())
    return config | (config.get("text_config") or {})


def activations_line(cfg: Config, shape: DecoderShape) -> str:
    """What a rank keeps of its longest forward pass, and whether its layers are computed again."""
    learn, width = cfg.learn, 2 if cfg.model.dtype == "bfloat16" else 4
    again = checkpoints(learn.checkpointing, shape, learn.rank_tokens, width=width)
    kept = activation_bytes(shape, learn.rank_tokens, width=width, checkpointing=again)
    how = "each layer computed again" if again else "all layers kept"
    return f"at most {kept / GIB:.1f} GiB on each learner rank ({learn.rank_tokens} tokens, {how})"


def memory_line(
    cfg: Config,
    shape: dict[str, Any],
    critic: dict[str, Any] | None = None,
    *,
    engine: bool = True,
    trained: int | None = None,
) -> str:
    """Estimated memory: engine weights and KV cache (where there is an ``engine``); weights of the learner, with
    optimizer state for those that are ``trained`` (default: all), a critic's too; largest chunk excluded.
    """
    width = 2 if cfg.model.dtype == "bfloat16" else 4
    tokens = cfg.rollout.max_sequences * cfg.model.context_tokens
    engine_bytes = shape["parameters"] * width + shape["layers"] * shape["kv_width"] * width * tokens
    beside = critic["parameters"] if critic else 0
    n, t = shape["parameters"] + beside, (shape["parameters"] if trained is None else trained) + beside
    sharded = 12 * t / cfg.learn.ranks if cfg.learn.zero_stage else 12 * t
    weights = width * n / (cfg.learn.ranks if cfg.learn.zero_stage == 3 else 1)
    gradients = 4 * t / (cfg.learn.ranks if cfg.learn.zero_stage >= 2 else 1)
    learner = weights + gradients + sharded
    parts = [f"engine about {engine_bytes / GIB:.1f} GiB"] if engine else []
    return ", ".join([*parts, f"each learner rank about {learner / GIB:.1f} GiB"])


def _tensor_sizes(policy: Path) -> list[int]:
    """Numbers of elements of all tensors in the checkpoint's safetensors files, from their headers alone."""
    sizes = []
    for file in sorted(policy.glob("*.safetensors")):
        with file.open("rb") as f:
            header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        for name, entry in header.items():
            if name != "__metadata__":
                count = 1
                for length in entry["shape"]:
                    count *= length
                sizes.append(count)
    return sizes
