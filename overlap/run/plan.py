"""The plan of a run in figures, before anything is started: what ``--dry-run`` prints and a run's banner shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from overlap.config.fields import Config
from overlap.core import Task
from overlap.core.errors import ConfigError, RequestRefused, blaming, count_of, refusing
from overlap.pipeline.advantage import ESTIMATORS
from overlap.placement.activations import trained_parameters
from overlap.placement.devices import bfloat16_is_fast
from overlap.placement.fit import named_devices, planned_seats
from overlap.placement.memory import MemoryNeed
from overlap.placement.planned_run import PlannedRun, Seats
from overlap.placement.shapes import read_shape
from overlap.placement.table import cache_line, memory_lines, options_line, seats_line
from overlap.record.kept_samples import KeptSamples
from overlap.rewards import RewardTask
from overlap.run.disk import disk_need
from overlap.run.run_inputs import RunInputs
from sandbox.core.nouns import Limits
from sandbox.pool.quotas import memory_bytes, too_much_memory

if TYPE_CHECKING:
    from overlap.server.template import ChatTemplate


def plan_lines(
    inputs: RunInputs,
    asked: PlannedRun,
    seats: Seats,
    memory: Sequence[MemoryNeed],
    rollouts: KeptSamples | None = None,
) -> list[tuple[str, str]]:
    """Lines "what, value" for a person. ``memory`` is planned by what is ``asked`` on these ``seats``; with
    ``rollouts``, no engine and no verifier will start.
    """
    cfg, r, le = inputs.cfg, inputs.cfg.rollout, inputs.cfg.learn
    lines = [_policy_line(asked)]
    if cfg.dtype == "bfloat16" and not (seats.devices or bfloat16_is_fast()):
        told = "this processor computes faster in float32 than in bfloat16: use model.dtype=float32"
        lines.append(("number type", told))
    lines += [
        *_data_lines(inputs),
        ("step", f"{r.groups_per_step} prompts x {r.samples_per_group} samples = {cfg.samples_per_step} trajectories"),
        *episode_lines(inputs),
        ("staleness", _staleness(cfg, seats)),
    ]
    if r.max_staleness and le.correction == "none":
        told = "none: stale samples are learned from as if they were on-policy (learn.correction)"
        lines.append(("correction", told))
    lines += [("algorithm", _algorithm(cfg)), ("learner", _learner(cfg)), *_learner_lines(asked, seats)]
    lines.append(("evaluation", _evaluation(cfg, len(inputs.heldout))))
    if rollouts is not None:
        unused = "no engine, no verifier and no parity check"
        lines.append(("rollouts", f"{len(rollouts.known)} samples of {rollouts.path}; {unused}"))
    else:
        lines.append(("verifier", _verifier(cfg, inputs.task)))
        if told := too_much_memory(cfg.verify.workers, Limits().memory_bytes, memory_bytes()):
            lines.append(("programs", told))
    disk = disk_need(asked, len(inputs.heldout)).line
    return [*lines, *seats_lines(asked, seats), *memory_lines(memory, seats), ("disk", disk)]


def _staleness(cfg: Config, seats: Seats) -> str:
    """Largest age of samples, and number of groups in flight, in words."""
    stale = cfg.rollout.max_staleness
    told = f"asynchronous: samples up to {count_of(stale, 'policy version')} old" if stale else "on-policy"
    told += f"; at most {count_of(cfg.leases, 'group')} in flight"
    kept = seats.turns and stale and cfg.rollout.in_flight == "recompute"
    return told + ("; unfinished responses sleep with the engine and are continued" if kept else "")


def _algorithm(cfg: Config) -> str:
    """Method that makes a gradient of rewards, in the words of the papers."""
    learn = cfg.learn
    shipped = ESTIMATORS.get(learn.advantage)
    told = (shipped.told if shipped else f"advantage by {learn.advantage}") + f", loss {learn.loss}"
    told += f", off-policy correction {learn.correction}" if learn.correction != "none" else ""
    return told + ("" if learn.kl_coef else ", no KL penalty")


def _learner(cfg: Config) -> str:
    """The optimizer and how it is spread."""
    learn = cfg.learn
    updates = f"{count_of(learn.updates_per_step, 'optimizer update')} per step"
    lr = f"learning rate {learn.lr:g}" + (f" ({learn.schedule} decay)" if learn.schedule != "constant" else "")
    return f"{count_of(learn.ranks, 'rank')}, ZeRO stage {learn.zero_stage}, AdamW, {updates}, {lr}"


def devices_plan_lines(asked: PlannedRun, seats: Seats) -> list[tuple[str, str]]:
    """The plan of a run on other hardware: its lines that depend on the devices."""
    lines = [_policy_line(asked), *_learner_lines(asked, seats), ("staleness", _staleness(asked.cfg, seats))]
    return [*lines, *seats_lines(asked, seats)]


def _policy_line(asked: PlannedRun) -> tuple[str, str]:
    """The policy that is trained, and its size."""
    model = asked.cfg.model
    return "policy", f"{model.policy} ({asked.policy.parameters / 1e6:,.0f} M parameters, {asked.cfg.dtype})"


def _data_lines(inputs: RunInputs) -> list[tuple[str, str]]:
    """The prompts: in which form, how many, and which are left out."""
    cfg, lines = inputs.cfg, []
    if not getattr(inputs.tokenizer, "chat_template", None):
        way_out = "use an instruct policy, or put a chat_template.jinja beside it"
        told = f"model.policy={cfg.model.policy} has none, prompts are plain text: {way_out}"
        lines.append(("chat template", told))
    bound = cfg.data.drop_solved
    solved = f"; left out of later epochs once solved at {bound:g} or more" if bound else ""
    lines.append(("prompts", f"{len(inputs.train)} to train on, {len(inputs.heldout)} held out{solved}"))
    return lines + left_out_lines(inputs)


def left_out_lines(inputs: RunInputs) -> list[tuple[str, str]]:
    """A line per split and reason for the rows of the data that are not used, and per note on the rows that are."""
    lines = [("left out", f"{split}: {line}") for split, intake in inputs.splits.items() for line in intake.lines()]
    return lines + [("note", f"{split}: {line}") for split, intake in inputs.splits.items() for line in intake.noted()]


def _learner_lines(asked: PlannedRun, seats: Seats) -> list[tuple[str, str]]:
    """Special settings of the learner: an offload without effect, adapters, a critic, a KL penalty."""
    cfg, shape, lines = asked.cfg, asked.policy, []
    if cfg.learn.offload == "sleep" and not seats.turns:
        told = "learn.offload=sleep has no effect: engine and learner share no GPU"
        lines.append(("offload", told))
    if rank := cfg.learn.lora_rank:
        trained = trained_parameters(shape.decoder, shape.parameters, rank)
        told, lr = f"LoRA of rank {rank} on all linear layers, {trained / 1e6:,.1f} M parameters trained", cfg.learn.lr
        told += f"; each weight sync sends the adapter alone, {asked.sent[0] / 1e6:,.0f} MB"
        if lr < 1e-5:
            told += f"; learn.lr={lr:g} is a rate for all weights, adapters usually take 10 times as much"
        lines.append(("adapters", told))
    if asked.critic is not None:
        c, size = cfg.critic, f"{asked.critic.parameters / 1e6:,.0f} M parameters"
        alone = f", trained alone for the first {count_of(c.warmup_steps, 'step')}" if c.warmup_steps else ""
        lines.append(("critic", f"begins as {c.policy or 'the policy'} ({size}), learning rate {c.lr:g}{alone}"))
    return lines + ([("KL penalty", _penalty(asked))] if cfg.learn.kl_coef else [])


def _penalty(asked: PlannedRun) -> str:
    """Reference, estimate and coefficient of the KL penalty, with a note where rewards are only reported."""
    learn, name = asked.cfg.learn, "the initial policy"
    if asked.reference is not None:
        name = f"{learn.reference} ({asked.reference.parameters / 1e6:,.0f} M parameters)"
    told = f"against {name}, {learn.kl_by} in the {learn.kl_in}, coefficient {learn.kl_coef:g}"
    return told + ("; rewards are only reported (learn.advantage=none)" if learn.advantage == "none" else "")


def _verifier(cfg: Config, task: Task) -> str:
    """The judge of answers, and its time limit."""
    if isinstance(task, RewardTask):
        wall_s = Limits(cpu_s=cfg.verify.cpu_s).wall_limit_s
        workers = count_of(cfg.verify.workers, "reward worker")
        return f"{task.called['reward']} (style {task.style}) in {workers}, at most {wall_s:g} s per answer"
    workers, own = count_of(cfg.verify.workers, "sandbox worker"), getattr(task, "own_limits", "")
    if cfg.cluster.address:
        workers += f" here, and the free cores of every further node of the cluster at {cfg.cluster.address}"
    return f"{workers}, at most {cfg.verify.cpu_s:g} s of CPU time per test" + (f"; {own}" if own else "")


def _evaluation(cfg: Config, problems: int) -> str:
    """The evaluations and their times, or why there are none."""
    samples = cfg.run.eval_samples
    if not (samples and problems):
        return "none: " + ("no held-out prompts" if samples else "run.eval_samples=0")
    when = f"before, every {cfg.run.eval_every} steps and after" if cfg.run.eval_every else "before and after"
    rates = " and ".join(f"pass@{k}" for k in sorted({1, samples}))
    drawn = f"{count_of(problems, 'held-out problem')} x {count_of(samples, 'sample')}"
    return f"{rates} on {drawn} at temperature {cfg.rollout.temperature:g}, {when} training"


def episode_lines(inputs: RunInputs) -> list[tuple[str, str]]:
    """The program or method of episodes of several turns, their bounds, and the parsers of their answers. Empty where
    rollouts have one turn. Raises ConfigError for a template that takes no such dialog.
    """
    cfg, e, task = inputs.cfg, inputs.cfg.episode, inputs.task
    by = own = "" if getattr(task, "rollout", None) is None else f"{type(task).__qualname__}.rollout"
    if not e.command and not own:
        return []
    if e.command:
        by = repr(e.command) + (f", in place of {own}" if own else "")
        by += "" if e.jail is None else " in a jail"
    bounds = f"up to {count_of(e.turns, 'turn')}, {cfg.behind_prompt} tokens after the prompt, {e.timeout_s:g} s"
    if cfg.learn.truncated == "mask":
        bounds += "; a truncated episode is masked (learn.truncated=mask)"
    if e.turns > 1 and cfg.behind_prompt == cfg.model.response_tokens:
        bounds += "; one response may use up all tokens (episode.tokens)"
    lines, template = [("episodes", f"{by}: {bounds}")], _template(inputs)
    if e.command or getattr(task, "endpoint", False) or e.tool_parser:
        lines.append(("tool calls", _tool_calls(cfg, template.shows_calls)))
    return lines


def _tool_calls(cfg: Config, shown: str) -> str:
    """The parser for calls of tools that a program offers; ``shown`` is a call as the chat template shows it."""
    parser, counted = cfg.episode.tool_parser, "answers with calls that are not read are counted (episode/unread)"
    form = f"the policy's chat template shows one as {shown!r}" if shown else "the policy's chat template shows none"
    if not parser:
        return f"read by nothing, so a call stays text: set episode.tool_parser; {form}; {counted}"
    if not shown:
        return f"read by episode.tool_parser={parser}, but {form}, so nothing says that it fits; {counted}"
    return f"read by episode.tool_parser={parser}, which has to fit: {form}; {counted}"


def _template(inputs: RunInputs) -> ChatTemplate:
    from overlap.server.template import ChatTemplate  # imports a web server

    fault, way_out = "its chat template takes no dialog of several turns", "use another policy or chat_template.jinja"
    with refusing("model.policy", inputs.cfg.model.policy, fault, way_out, (RequestRefused,)):
        return ChatTemplate(inputs.tokenizer)


def seats_lines(asked: PlannedRun, seats: Seats) -> list[tuple[str, str]]:
    """The devices of engines and ranks, the size of the KV cache where it depends on a field, and engine options."""
    lines = [("KV cache", cache_line(asked, seats)), ("engine", options_line(asked))]
    return [("devices", seats_line(seats)), *((name, line) for name, line in lines if line)]


def memory_inputs(inputs: RunInputs, rollouts: KeptSamples | None = None) -> PlannedRun:
    """Inputs to the memory plan of a run."""
    critic, reference = (None if path is None else read_shape(path) for path in (inputs.critic, inputs.reference))
    return PlannedRun(inputs.cfg, read_shape(inputs.policy), critic, rollouts is None, reference)


def devices_plan(cfg: Config, devices: str) -> tuple[PlannedRun, Seats]:
    """Return what a memory plan of other hardware needs; ``devices`` names the hardware ("8x80"). Of the models only
    ``config.json`` is read. Raises ConfigError.
    """
    from overlap.generate.options import check_options
    from overlap.policy.resolve import resolve_config

    hardware = named_devices(devices)
    check_options(cfg, "cuda")
    if cfg.run.device == "cpu":
        raise ConfigError("run.device", "cpu", f"--devices={devices} plans for GPUs: use auto or cuda")
    policy = read_shape(resolve_config(cfg.model.policy))
    critic = reference = None
    if cfg.learn.advantage == "gae":
        with blaming("critic.policy"):
            critic = read_shape(resolve_config(cfg.critic.policy)) if cfg.critic.policy else policy
    if cfg.learn.reference:
        with blaming("learn.reference"):
            reference = read_shape(resolve_config(cfg.learn.reference))
    return PlannedRun(cfg, policy, critic, reference=reference), planned_seats(cfg, hardware)
