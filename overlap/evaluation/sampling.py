"""Generate, then score: the one way from requests to scored samples outside the training loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from overlap.aio import unwrapped
from overlap.config import RunConfig
from overlap.core import Request, Scored, Trajectory, Verifier
from overlap.errors import StageError
from overlap.pipeline import naming_stage

STALL_S = RunConfig().stall_s


class AnswerSource(Protocol):
    """What is needed of a Generator."""

    async def generate(self, request: Request) -> Trajectory: ...


async def answers(
    generator: AnswerSource,
    verifier: Verifier,
    requests: Sequence[Request],
    on_scored: Callable[[Scored], None] | None = None,
    *,
    stall_s: float = STALL_S,
) -> list[Scored]:
    """The scored samples of ``requests``, in their order; each is verified the moment it is generated.

    Both doors must be started and a version loaded. ``on_scored`` is called as each one ends. Raises StageError, which
    names the sample, for what the doors raise, and when no sample ends for ``stall_s`` seconds.
    """
    loop = asyncio.get_running_loop()
    ended = 0

    async def one(request: Request) -> Scored:
        nonlocal ended
        with naming_stage("generate", request.id):
            trajectory = await generator.generate(request)
        with naming_stage("verify", request.id):
            scored = await verifier.score(trajectory)
        ended += 1
        if not limit.expired():
            limit.reschedule(loop.time() + stall_s)
        if on_scored is not None:
            on_scored(scored)
        return scored

    with unwrapped():
        try:
            async with asyncio.timeout(stall_s) as limit, asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(one(request)) for request in requests]
        except TimeoutError as error:
            cause = TimeoutError(f"nothing for {stall_s:g} s, {len(requests) - ended} pending")
            raise StageError("evaluate", "", cause) from error
    return [task.result() for task in running]
