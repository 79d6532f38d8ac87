"""The pipeline: ``serial()`` and ``overlapped()``, the same verbs side by side.

     prompts        requests          trajectories          scored            steps
    ────────▶ admit ────────▶ generate ────────▶ verify ────────▶ add ────────▶ learn ─▶ publish ─▶ load
                ▲ lease                                                                                │
                └──────────────────────── weights land, leases free, prompts enter ◀───────────────────┘

``overlapped`` verifies each trajectory the moment it ends, while the rest still generate; with ``max_staleness >= 1``
it generates while the learner learns, too; where the two share devices, the engine sleeps meanwhile and keeps what it
has of later steps. ``serial`` does one thing after the other: it is the oracle of the batches (the same, on a seeded
fake) and the baseline of every speed-up. No GPU library is imported here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from overlap.config.fields import Config
from overlap.core import Request, Scored, Trajectory
from overlap.core.aio import together, unwrapped
from overlap.core.errors import EngineLost, naming_stage
from overlap.pipeline.assemble import Assembler
from overlap.pipeline.control import Control, EndedEarly
from overlap.pipeline.flow import Flow, Pending
from overlap.pipeline.learning import Components, Learning, StepResult
from overlap.pipeline.lookahead import Lookahead
from overlap.pipeline.prompts import PromptStream
from overlap.pipeline.tracker import GroupTracker

Item = TypeVar("Item", Request, Trajectory)
Result = TypeVar("Result")

OnWeights = Callable[[StepResult], Awaitable[None]] | None
"""Awaited after every step, before ``OnStep``: the engine serves its weights, its groups still hold their leases."""
OnStep = Callable[[StepResult], Awaitable[None]]
"""Awaited after every step, before the next one is learned."""
OnReady = Callable[[], Awaitable[None]] | None
"""Awaited once, when the engine serves its first version and nothing has been admitted yet."""
OnStall = Callable[[list[Pending], bool], None]
"""Gets samples without progress, and whether they are given up or begun again."""


PROBE_TOKENS = 256
"""Tokens of the response that the first version is checked on: nothing else is done meanwhile."""


@dataclass(frozen=True, slots=True)
class Position:
    """Position of a run: steps taken, the policy version in the learner, groups consumed, and results of groups that
    are not. Zeros begin a new run.
    """

    step: int = 0
    version: int = 0
    groups: int = 0
    carried: tuple[Scored, ...] = ()


BEGIN = Position()


async def serial(
    components: Components,
    cfg: Config,
    prompts: PromptStream,
    on_step: OnStep,
    at: Position = BEGIN,
    on_ready: OnReady = None,
    on_weights: OnWeights = None,
) -> None:
    """Generate all, then verify all, then learn, then load; step by step, one thing after the other."""
    assembler, admitted = Assembler(cfg, at.groups), at.groups
    learning = Learning(components, cfg, at.step, at.version)
    await _begin(learning, at, prompts, on_ready)
    for _ in range(at.step, cfg.run.steps):
        while (groups := assembler.next_step()) is None:
            requests: list[Request] = []
            for prompt in islice(prompts, assembler.missing):
                assembler.expect(admitted, prompt)
                requests += [Request(admitted, k, prompt) for k in range(cfg.rollout.samples_per_group)]
                admitted += 1
            if not requests:
                return  # no prompt is left
            trajectories = await _all("generate", components.generator.generate, requests)
            for scored in await _all("verify", components.verifier.score, trajectories):
                assembler.add(scored)
        result = await learning.learn(groups)
        if on_weights is not None:
            await on_weights(result)
        prompts.note(groups)
        await on_step(result)


async def overlapped(
    components: Components,
    cfg: Config,
    prompts: PromptStream,
    on_step: OnStep,
    at: Position = BEGIN,
    on_ready: OnReady = None,
    on_weights: OnWeights = None,
    control: Control | None = None,
    on_stall: OnStall = lambda pending, given_up: None,
) -> None:
    """All stages at once, in one task group; ends after ``cfg.run.steps`` steps, by ``control``, or with the first
    error of a stage.
    """
    learning = Learning(components, cfg, at.step, at.version)
    tracker = GroupTracker(cfg, prompts, cfg.run.steps - at.step, at.groups, at.carried)
    control = control or Control()
    lookahead = Lookahead(cfg, components.verifier, turns=components.learner.shares)
    tracker.window.allowed = lookahead.leases
    control.begin()
    try:
        with suppress(EndedEarly), unwrapped():
            async with asyncio.TaskGroup() as tasks:
                beside = [tasks.create_task(learning.serve_again(), name="serve again")]
                await _begin(learning, at, prompts, on_ready)
                flow = Flow(
                    components.generator, components.verifier, tasks, tracker.add, cfg.rollout.sequences, learning.awake
                )
                control.attach(tracker, flow)
                tasks.create_task(tracker.admit(flow.send), name="admit")
                beside.append(tasks.create_task(flow.watch(cfg.run.stall_s, on_stall), name="watch"))
                while (groups := await control.next_step()) is not None:
                    result = await learning.learn(groups)
                    if on_weights is not None:
                        await on_weights(result)
                    lookahead.note(result, flow.decoded_s)
                    tracker.window.allowed = lookahead.leases
                    tracker.land(groups)
                    flow.touch()
                    await on_step(replace(result, loop=control.state(), carried=tracker.finished))
                for task in beside:
                    task.cancel()
    finally:
        control.detach()


async def _begin(learning: Learning, at: Position, prompts: PromptStream, on_ready: OnReady) -> None:
    """Bring the first version into the engine and check it on the beginning of a response to the first prompt, which is
    thrown away.
    """
    await learning.load()
    with naming_stage("load", f"version {at.version}"):
        while True:
            sample = await learning.components.generator.generate(
                Request(-1, 0, prompts.peek(), max_tokens=PROBE_TOKENS)
            )
            with suppress(EngineLost):  # the next engine has its weights from ``serve_again``
                await learning.check(sample)
                break
    if on_ready is not None:
        await on_ready()


async def _all(stage: str, work: Callable[[Item], Awaitable[Result]], items: Iterable[Item]) -> list[Result]:
    async def one(item: Item) -> Result:
        with naming_stage(stage, item.id):
            return await work(item)

    return await together(*map(one, items))
