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
from overlap.prepare.run_inputs import RunInputs
from overlap.record import Rollouts

GIB = 2**30


def plan_lines(
    inputs: RunInputs, asked: PlannedRun, seats: Seats, memory: MemoryPlan, rollouts: Rollouts | None = None
) -> list[tuple[str, str]]:
    """Lines "what, value" for a person. ``memory`` is planned by what is ``asked`` on these ``seats``; with
    ``rollouts``, no engine and no verifier will start.
    """
    cfg, shape = inputs.cfg, asked.policy
    r, le = cfg.rollout, cfg.learn
    trained = trained_parameters(shape.decoder, shape.parameters, le.lora_rank)
    return [
        policy_line(asked),
        *number_lines(cfg, seats, native=computes_bfloat16()),
        *_without_template(inputs),
        ("prompts", prompts_line(inputs)),
        *left_out_lines(inputs),
        *([("references", inputs.references)] if inputs.references else []),
        ("step", f"{r.groups_per_step} groups x {r.samples_per_group} samples = {cfg.samples_per_step} trajectories"),
        *episode_lines(inputs),
        ("leases", f"at most {cfg.leases} groups in flight; samples at most {r.max_staleness} policy versions old"),
        *_uncorrected(cfg),
        (
            "learner",
            f"{le.ranks} rank(s), ZeRO {le.zero_stage}, {le.updates_per_step} update(s) per step, lr {le.lr:g}",
        ),
        *_nobody_sleeps(cfg, seats),
        *adapters_lines(cfg, trained),
        *_critic(cfg, asked.critic),
        ("evaluation", evaluation_line(cfg, len(inputs.heldout))),
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
    """A warning where this machine's processor has no instructions for the dtype (``native``: it has)."""
    if native or seats.devices or cfg.model.dtype != "bfloat16":
        return []
    return [("number type", "this processor emulates bfloat16, about 50 times slower: use model.dtype=float32")]


def episode_lines(inputs: RunInputs) -> list[tuple[str, str]]:
    """What runs episodes of several turns, their bounds, and notes on the policy's chat template. Empty where rollouts
    have one turn. Raises ConfigError for a template that takes no such dialog.
    """
    cfg, e, task = inputs.cfg, inputs.cfg.episode, inputs.task
    by = own = "" if getattr(task, "rollout", None) is None else f"{type(task).__qualname__}.rollout"
    if not e.command and not own:
        return []
    if e.command:
        by = repr(e.command) + (f", in place of {own}" if own else "")
    bounds = f"up to {e.turns} turns, {cfg.behind_prompt} tokens after a prompt, {e.timeout_s:g} s"
    if e.turns > 1 and cfg.behind_prompt == cfg.model.response_tokens:
        bounds += "; one response may use up all tokens (episode.tokens)"
    return [("episodes", f"{by}: {bounds}"), *(("chat template", note) for note in _template_notes(inputs))]


def _template_notes(inputs: RunInputs) -> tuple[str, ...]:
    from overlap.server import ChatTemplate  # imports a web server

    try:
        return ChatTemplate(inputs.tokenizer).notes
    except RequestRefused as error:
        refusal = f"its chat template takes no dialog of several turns ({error})"
        way_out = f"{refusal}: use another policy or another chat_template.jinja"
        raise ConfigError("model.policy", inputs.cfg.model.policy, way_out) from None


def seats_lines(asked: PlannedRun, seats: Seats) -> list[tuple[str, str]]:
    """The devices of engines and ranks, and the size of the KV cache where it depends on a field."""
    cache = cache_line(asked, seats)
    return [("devices", seats_line(seats)), *([("KV cache", cache)] if cache else [])]


def devices_plan_lines(asked: PlannedRun, seats: Seats) -> list[tuple[str, str]]:
    """The plan of a run on other hardware: its lines that depend on the devices."""
    cfg, shape = asked.cfg, asked.policy
    trained = trained_parameters(shape.decoder, shape.parameters, cfg.learn.lora_rank)
    own = [policy_line(asked), *_nobody_sleeps(cfg, seats), *adapters_lines(cfg, trained), *_critic(cfg, asked.critic)]
    return [*own, *seats_lines(asked, seats), ("activations", activations_line(cfg, shape.decoder))]


def memory_inputs(inputs: RunInputs, rollouts: Rollouts | None = None) -> PlannedRun:
    """What the memory of a run is planned by."""
    critic = None if inputs.critic is None else read_shape(inputs.critic)
    return PlannedRun(inputs.cfg, read_shape(inputs.policy), critic, engine=rollouts is None)


def adapters_lines(cfg: Config, trained: int) -> list[tuple[str, str]]:
    """The LoRA adapters, with a warning if the learning rate looks like one for full weights."""
    rank, lr = cfg.learn.lora_rank, cfg.learn.lr
    if not rank:
        return []
    slow = f"; learn.lr={lr:g} is a rate for all weights, adapters usually take 10 times as much" if lr < 1e-5 else ""
    return [("adapters", f"LoRA of rank {rank} on all linear layers, {trained / 1e6:,.1f} M parameters trained{slow}")]


def _nobody_sleeps(cfg: Config, seats: Seats) -> list[tuple[str, str]]:
    if cfg.learn.offload != "sleep" or seats.turns:
        return []
    return [
        ("offload", "no effect: engine and learner share no GPU, so neither has to free its memory (learn.offload)")
    ]


def _critic(cfg: Config, shape: ModelShape | None) -> list[tuple[str, str]]:
    if shape is None:
        return []
    c = cfg.critic
    alone = f", trained alone for {c.warmup_steps} step(s)" if c.warmup_steps else ""
    return [("critic", f"{c.policy or 'the policy'} ({shape.parameters / 1e6:,.0f} M parameters), lr {c.lr:g}{alone}")]


def _verifier(cfg: Config, rollouts: Rollouts | None) -> list[tuple[str, str]]:
    if rollouts is None:
        workers = f"{cfg.verify.workers} worker(s)"
        if cfg.cluster.address:
            workers += f" here, and the free cores of every further node of the cluster at {cfg.cluster.address}"
        return [("verifier", f"{workers}, {cfg.verify.cpu_s:g} s CPU per test")]
    unused = "no engine, no verifier and no parity check"
    return [("rollouts", f"{len(rollouts.known)} samples of {rollouts.path}; {unused}")]


def _uncorrected(cfg: Config) -> list[tuple[str, str]]:
    if not cfg.rollout.max_staleness or cfg.learn.correction != "none":
        return []
    return [("correction", "none: stale samples count as if the current policy had sampled them (learn.correction)")]


def prompts_line(inputs: RunInputs) -> str:
    """How many there are, and whether solved ones are left out."""
    bound = inputs.cfg.data.drop_solved
    solved = f"; left out of later epochs once solved at {bound:g} or more" if bound else ""
    return f"{len(inputs.train)} to train on, {len(inputs.heldout)} held out{solved}"


def left_out_lines(inputs: RunInputs) -> list[tuple[str, str]]:
    """A line per split and reason for the rows of the data that are not used."""
    return [("left out", f"{split}: {line}") for split, intake in inputs.splits.items() for line in intake.lines()]


def evaluation_line(cfg: Config, problems: int) -> str:
    """What is evaluated and when, or why nothing is."""
    samples = cfg.run.eval_samples
    if not (samples and problems):
        return "none: " + ("no held-out prompts" if samples else "run.eval_samples=0")
    when = f"every {cfg.run.eval_every} steps, " if cfg.run.eval_every else ""
    rates = " and ".join(f"pass@{k}" for k in sorted({1, samples}))
    drawn = f"{problems} problems x {samples} samples at temperature {cfg.eval_temperature:g}"
    return f"{rates} of {drawn}, before, {when}and after the training"


def _without_template(inputs: RunInputs) -> list[tuple[str, str]]:
    if getattr(inputs.tokenizer, "chat_template", None):
        return []
    way_out = "use an instruct policy, or put a chat_template.jinja beside it"
    return [("chat template", f"model.policy={inputs.cfg.model.policy} has none, prompts are plain text: {way_out}")]


def activations_line(cfg: Config, shape: DecoderShape) -> str:
    """Memory of a rank's longest forward pass, and whether activations are recomputed."""
    learn, width = cfg.learn, 2 if cfg.model.dtype == "bfloat16" else 4
    again = checkpoints(learn.checkpointing, shape, learn.rank_tokens, width=width)
    kept = activation_bytes(shape, learn.rank_tokens, width=width, checkpointing=again)
    how = "recomputed per layer" if again else "kept for all layers"
    return f"at most {kept / GIB:.1f} GiB on each learner rank ({learn.rank_tokens} tokens, {how})"


def devices_plan(cfg: Config, devices: str) -> tuple[PlannedRun, Seating]:
    """Return what a memory plan of other hardware needs; ``devices`` names the hardware ("8x80"). Of the models only
    ``config.json`` is read. Raises ConfigError.
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
