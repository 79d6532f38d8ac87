"""The plan of a run in figures, before anything is started: what ``--dry-run`` prints and a run's banner shows."""

from __future__ import annotations

from overlap.config import Config
from overlap.errors import ConfigError, RequestRefused, blaming
from overlap.placement import (
    DecoderShape,
    MemoryPlan,
    ModelShape,
    PlannedRun,
    Seating,
    Seats,
    activation_bytes,
    cache_line,
    checkpoints,
    computes_bfloat16,
    memory_line,
    named_devices,
    read_shape,
    seating_on,
    seats_line,
    trained_parameters,
)
from overlap.prepare.run_inputs import Prepared
from overlap.record import Rollouts

GIB = 2**30


def plan_lines(
    prepared: Prepared, asked: PlannedRun, seats: Seats, memory: MemoryPlan, rollouts: Rollouts | None = None
) -> list[tuple[str, str]]:
    """Lines "what, value" for a person. ``memory`` is planned by what is ``asked`` on these ``seats``; with
    ``rollouts``, no engine and no verifier will start.
    """
    cfg, shape = prepared.cfg, asked.policy
    r, le = cfg.rollout, cfg.learn
    trained = trained_parameters(shape.decoder, shape.parameters, le.lora_rank)
    return [
        policy_line(asked),
        *number_lines(cfg, seats, native=computes_bfloat16()),
        *_without_template(prepared),
        ("prompts", prompts_line(prepared)),
        *left_out_lines(prepared),
        *([("references", prepared.references)] if prepared.references else []),
        ("step", f"{r.groups_per_step} groups x {r.samples_per_group} samples = {cfg.samples_per_step} trajectories"),
        *episode_lines(prepared),
        ("leases", f"{cfg.leases} groups, staleness at most {r.max_staleness}"),
        *_uncorrected(cfg),
        (
            "learner",
            f"{le.ranks} rank(s), ZeRO {le.zero_stage}, {le.updates_per_step} update(s) per step, lr {le.lr:g}",
        ),
        *_nobody_sleeps(cfg, seats),
        *adapters_lines(cfg, trained),
        *_critic(cfg, asked.critic),
        ("evaluation", evaluation_line(cfg, len(prepared.heldout))),
        *_verifier(cfg, rollouts),
        *seats_lines(asked, seats),
        ("memory", memory_line(memory)),
        ("activations", activations_line(cfg, shape.decoder)),
    ]


def policy_line(asked: PlannedRun) -> tuple[str, str]:
    """What is trained, and how large it is."""
    model = asked.cfg.model
    return "policy", f"{model.policy} ({asked.policy.parameters / 1e6:,.0f} M parameters, {model.dtype})"


def number_lines(cfg: Config, seats: Seats, *, native: bool) -> list[tuple[str, str]]:
    """A word on a run whose numbers this machine's processor has no instructions for (``native``: it has)."""
    if native or seats.devices or cfg.model.dtype != "bfloat16":
        return []
    return [("number type", "bfloat16 is done in software here, about 50 times slower: use model.dtype=float32")]


def episode_lines(prepared: Prepared) -> list[tuple[str, str]]:
    """What rolls episodes of several turns out, their bounds, and what the policy's chat template does with them.
    Nothing where rollouts have one turn. Raises ConfigError for a template that takes none.
    """
    cfg, e, task = prepared.cfg, prepared.cfg.episode, prepared.task
    by = own = "" if getattr(task, "rollout", None) is None else f"{type(task).__qualname__}.rollout"
    if not e.command and not own:
        return []
    if e.command:
        by = repr(e.command) + (f", in the place of {own}" if own else "")
    bounds = f"up to {e.turns} turns, {cfg.behind_prompt} tokens behind a prompt, {e.timeout_s:g} s"
    if e.turns > 1 and cfg.behind_prompt == cfg.model.response_tokens:
        bounds += "; one response may use up all tokens (episode.tokens)"
    return [("episodes", f"{by}: {bounds}"), *(("chat template", note) for note in _template_notes(prepared))]


def _template_notes(prepared: Prepared) -> tuple[str, ...]:
    from overlap.server import ChatTemplate  # imports a web server

    try:
        return ChatTemplate(prepared.tokenizer).notes
    except RequestRefused as error:
        way_out = f"it takes no dialog of several turns ({error}): use another policy, or another chat_template.jinja"
        raise ConfigError("model.policy", prepared.cfg.model.policy, way_out) from None


def seats_lines(asked: PlannedRun, seats: Seats) -> list[tuple[str, str]]:
    """Who sits where, and what an engine's KV cache holds where that is a choice."""
    cache = cache_line(asked, seats)
    return [("devices", seats_line(seats)), *([("KV cache", cache)] if cache else [])]


def elsewhere_lines(asked: PlannedRun, seats: Seats) -> list[tuple[str, str]]:
    """The part of a plan that other hardware makes."""
    cfg, shape = asked.cfg, asked.policy
    trained = trained_parameters(shape.decoder, shape.parameters, cfg.learn.lora_rank)
    own = [policy_line(asked), *_nobody_sleeps(cfg, seats), *adapters_lines(cfg, trained), *_critic(cfg, asked.critic)]
    return [*own, *seats_lines(asked, seats), ("activations", activations_line(cfg, shape.decoder))]


def asked_for(prepared: Prepared, rollouts: Rollouts | None = None) -> PlannedRun:
    """What the memory of a run is planned by."""
    critic = None if prepared.critic is None else read_shape(prepared.critic)
    return PlannedRun(prepared.cfg, read_shape(prepared.policy), critic, engine=rollouts is None)


def adapters_lines(cfg: Config, trained: int) -> list[tuple[str, str]]:
    """What is trained in the weights' place, and whether by a rate that is meant for these."""
    rank, lr = cfg.learn.lora_rank, cfg.learn.lr
    if not rank:
        return []
    slow = f"; learn.lr={lr:g} is a rate for all weights, adapters usually take 10 times as much" if lr < 1e-5 else ""
    return [("adapters", f"LoRA of rank {rank} on all linear layers, {trained / 1e6:,.1f} M parameters trained{slow}")]


def _nobody_sleeps(cfg: Config, seats: Seats) -> list[tuple[str, str]]:
    if cfg.learn.offload != "sleep" or seats.turns:
        return []
    return [
        ("offload", "nothing leaves: engine and learner share no GPU, so neither waits for the other (learn.offload)")
    ]


def _critic(cfg: Config, shape: ModelShape | None) -> list[tuple[str, str]]:
    if shape is None:
        return []
    c = cfg.critic
    alone = f", alone for {c.warmup_steps} step(s)" if c.warmup_steps else ""
    return [("critic", f"{c.policy or 'the policy'} ({shape.parameters / 1e6:,.0f} M parameters), lr {c.lr:g}{alone}")]


def _verifier(cfg: Config, rollouts: Rollouts | None) -> list[tuple[str, str]]:
    if rollouts is None:
        workers = f"{cfg.verify.workers} worker(s)"
        if cfg.cluster.address:
            workers += f" here, and the free cores of every further node of the cluster at {cfg.cluster.address}"
        return [("verifier", f"{workers}, {cfg.verify.cpu_s:g} s CPU per test")]
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
    rates = " and ".join(f"pass@{k}" for k in sorted({1, samples}))
    drawn = f"{problems} problems x {samples} samples at temperature {cfg.eval_temperature:g}"
    return f"{rates} of {drawn}, before, {when}and after the training"


def _without_template(prepared: Prepared) -> list[tuple[str, str]]:
    if getattr(prepared.tokenizer, "chat_template", None):
        return []
    way_out = "use an instruct policy, or put a chat_template.jinja beside it"
    return [("chat template", f"model.policy={prepared.cfg.model.policy} has none, prompts are plain text: {way_out}")]


def activations_line(cfg: Config, shape: DecoderShape) -> str:
    """What a rank keeps of its longest forward pass, and whether its layers are computed again."""
    learn, width = cfg.learn, 2 if cfg.model.dtype == "bfloat16" else 4
    again = checkpoints(learn.checkpointing, shape, learn.rank_tokens, width=width)
    kept = activation_bytes(shape, learn.rank_tokens, width=width, checkpointing=again)
    how = "each layer computed again" if again else "all layers kept"
    return f"at most {kept / GIB:.1f} GiB on each learner rank ({learn.rank_tokens} tokens, {how})"


def elsewhere(cfg: Config, devices: str) -> tuple[PlannedRun, Seating]:
    """What the memory of a run is planned by on other hardware, of which ``devices`` says what there is ("8x80"). Of
    the models their ``config.json`` is enough. Raises ConfigError.
    """
    from overlap.policy import resolve_config

    seating = seating_on(named_devices(devices))
    if cfg.run.device == "cpu":
        raise ConfigError("run.device", "cpu", f"--devices={devices} plans for GPUs: use auto or cuda")
    policy = read_shape(resolve_config(cfg.model.policy))
    critic = None
    if cfg.learn.advantage == "gae":
        with blaming("critic.policy"):
            critic = read_shape(resolve_config(cfg.critic.policy)) if cfg.critic.policy else policy
    return PlannedRun(cfg, policy, critic), seating
