"""The real parts of a run: as many engines behind one door as its placement has seats for, and the verifier."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from overlap.core import Generator, Verifier
from overlap.placement import Placement
from overlap.prepared import Prepared


def steady_engines(
    prepared: Prepared,
    placement: Placement,
    scratch: Path,
    *,
    log: Path,
    tell: Callable[[str], None],
    watch: Callable[[int], None],
    went_on: Callable[[float], None],
) -> Generator:
    """Engines for a trainer, each of which comes up again after a death; see ``SteadyGenerator`` for the rest."""
    from overlap.generate import Replicas, SteadyGenerator, VllmGenerator

    def steady(engine: int, alone: bool) -> Generator:
        own = engine_log(log, engine, alone)
        return SteadyGenerator(
            lambda: VllmGenerator(prepared.cfg, prepared.policy, scratch, log=own, placement=placement, engine=engine),
            alone=alone,
            tell=tell,
            watch=watch,
            went_on=went_on,
        )

    count = len(placement.engines)
    return steady(0, True) if count == 1 else Replicas([steady(engine, False) for engine in range(count)])


def before_starts(generator: Generator, placement: Placement) -> Mapping[str, Callable[[], Awaitable[None]]]:
    """Where they take turns on their GPUs, the engines have theirs first, and sleep before the learner begins."""

    async def asleep() -> None:
        await generator.start()
        await generator.sleep()

    return {"learner": asleep} if placement.sleeps else {}


def serving_engines(prepared: Prepared, placement: Placement, scratch: Path, *, log: Path) -> Generator:
    """Engines that serve the policy's own weights, without a trainer."""
    from overlap.generate import Replicas, VllmGenerator

    def serving(engine: int, alone: bool) -> Generator:
        own = engine_log(log, engine, alone)
        return VllmGenerator(
            prepared.cfg, prepared.policy, scratch, standalone=True, log=own, placement=placement, engine=engine
        )

    count = len(placement.engines)
    if count == 1:
        return serving(0, True)
    return Replicas([serving(engine, False) for engine in range(count)], serving=True)


def sandbox_verifier(prepared: Prepared, scratch: Path, *, log: Path, tell: Callable[[str], None]) -> Verifier:
    """The pool of sandboxes for the task of a run."""
    from overlap.verify import SandboxVerifier

    return SandboxVerifier(prepared.cfg, prepared.task, log=log, scratch=scratch, tell=tell)


def engine_log(log: Path, engine: int, alone: bool) -> Path:
    """Where what an engine prints goes: into the log of the run, or, one of several, into a file of its own."""
    if alone:
        return log
    folder = log.parent / "engines"
    folder.mkdir(exist_ok=True)
    return folder / f"{engine}.log"
