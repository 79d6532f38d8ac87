"""Measures a policy: pass@k over a set of problems, with a confidence interval.

    Prompts x samples ──▶ generator ──▶ verifier ──▶ Tally per problem ──▶ PassRate ──▶ Estimate(value, low, high)

Samples are generated and judged as in training, with the same prompts and stop strings, at a temperature of their own.
A sample that could not be judged counts neither as passed nor as failed; how many there were is reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import comb, fsum
from typing import Any, Protocol, TypeVar

from overlap.config.fields import RunConfig
from overlap.core import Generator, Prompt, Request, Scored, Trajectory, Verifier
from overlap.core.aio import unwrapped
from overlap.core.errors import ConfigError, StageError, count_of, naming_stage
from overlap.evaluation.intervals import change_interval, mean_interval, rate_interval
from overlap.record.metrics import solved
from overlap.record.report import PASS_AT_1
from overlap.record.sample_writer import by_group
from overlap.record.timing import mean

STALL_S = RunConfig().stall_s
MEAN_REWARD = "mean reward"
OnScored = Callable[[int, int], None]
"""Called with (scored, all) samples."""


class _Named(Protocol):
    @property
    def id(self) -> str: ...


Asked = TypeVar("Asked", bound=_Named)
"""The object for which an answer is drawn or found, such as a Request; its ``id`` is in errors."""


@dataclass(frozen=True, slots=True)
class ProblemTally:
    """Outcome of one problem: ``passes`` of ``samples`` judged ones. ``failed`` ones were not judged by our fault."""

    id: str
    passes: int
    samples: int
    failed: int = 0
    truncated: int = 0
    tokens: int = 0
    """Response tokens of all judged samples."""
    rewards: float | None = None
    """Sum of the rewards of the judged samples, where one is neither 0 nor 1: a pass says little of these."""

    @property
    def rate(self) -> float:
        """Share of the judged samples that passed."""
        return self.passes / self.samples

    @property
    def reward(self) -> float:
        """Mean reward of the judged samples."""
        return self.rate if self.rewards is None else self.rewards / self.samples


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over problems with its 95 % interval, and how many problems it is of. Of none it is NaN in (0, 1)."""

    value: float
    low: float
    high: float
    problems: int

    def __str__(self) -> str:
        return f"{self.value:.3f} (95% CI {self.low:.3f} to {self.high:.3f})" if self.problems else "unknown"


@dataclass(frozen=True, slots=True)
class PassRate:
    """Results of one policy: the tallies of all problems, at a sampling temperature, in ``seconds``."""

    tallies: tuple[ProblemTally, ...]
    k: int = 1
    """Reported beside pass@1 when above 1."""
    temperature: float | None = None
    seconds: float = 0.0

    def at(self, k: int) -> Estimate:
        """pass@k: the unbiased estimate's mean over the problems with at least ``k`` judged samples."""
        judged = [t for t in self.tallies if t.samples >= k]
        values = [pass_at_k(t.samples, t.passes, k) for t in judged]
        draws = len(judged) / fsum(k / t.samples for t in judged) if judged else 1.0
        return Estimate(mean(values), *rate_interval(values, draws), len(judged))

    @property
    def samples(self) -> int:
        """Judged samples."""
        return sum(t.samples for t in self.tallies)

    @property
    def failed(self) -> int:
        """Samples that could not be judged."""
        return sum(t.failed for t in self.tallies)

    @property
    def binary(self) -> bool:
        """True when all rewards were 0 or 1."""
        return all(tally.rewards is None for tally in self.tallies)

    @property
    def measure(self) -> str:
        """Name of the reported figure: the share of samples that pass, or where rewards are no passes their mean."""
        return PASS_AT_1 if self.binary else MEAN_REWARD

    @property
    def estimate(self) -> Estimate:
        """pass@1, or the mean reward over the problems with a judged sample."""
        if self.binary:
            return self.at(1)
        values = [tally.reward for tally in self.tallies if tally.samples]
        return Estimate(mean(values), *mean_interval(values), len(values))

    def figures(self) -> dict[str, Any]:
        """Return the figures for ``summary.json``: the ``measure``; its value, low, high and problems; the same of
        ``pass_at_k`` where rewards are passes; and the rest.
        """
        figures = {
            "measure": self.measure,
            **asdict(self.estimate),
            "samples": self.samples,
            "failed": self.failed,
            "truncated_share": self._share(sum(t.truncated for t in self.tallies)),
            "tokens_mean": self._share(sum(t.tokens for t in self.tallies)),
            "temperature": self.temperature,
            "seconds": self.seconds,
        }
        return figures | ({"pass_at_k": {"k": self.k, **asdict(self.at(self.k))}} if self.k > 1 and self.binary else {})

    def _share(self, count: int) -> float:
        return count / self.samples if self.samples else float("nan")

    def __str__(self) -> str:
        rates = f"{MEAN_REWARD} {self.estimate}"
        if self.binary:
            rates = ", ".join(f"pass@{k} {self.at(k)}" for k in sorted({1, self.k}))
        failed = f", {self.failed} could not be judged" if self.failed else ""
        return f"{rates}; {self.samples} samples of {count_of(self.at(1).problems, 'problem')}{failed}"

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> PassRate:
        """The PassRate whose ``asdict`` was stored."""
        return cls(**{**stored, "tallies": tuple(ProblemTally(**t) for t in stored["tallies"])})


async def score_answers(
    generate: Callable[[Asked], Awaitable[Trajectory]],
    verifier: Verifier,
    requests: Sequence[Asked],
    on_scored: Callable[[Scored, int], None],
    *,
    stall_s: float = STALL_S,
) -> list[Scored]:
    """The scored samples of ``requests``, in their order; each is verified the moment it is generated.

    ``generate`` is that of a Generator with a version loaded, or finds answers that are kept; the verifier must be
    started. ``on_scored`` gets each one as it ends, and how many have ended. Raises StageError for what these two
    raise, naming the sample, and when no sample ends for ``stall_s`` seconds.
    """
    loop = asyncio.get_running_loop()
    ended = 0

    async def one(request: Asked) -> Scored:
        nonlocal ended
        with naming_stage("generate", request.id):
            trajectory = await generate(request)
        with naming_stage("verify", request.id):
            scored = await verifier.score(trajectory)
        ended += 1
        if not limit.expired():
            limit.reschedule(loop.time() + stall_s)
        on_scored(scored, ended)
        return scored

    with unwrapped():
        try:
            async with asyncio.timeout(stall_s) as limit, asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(one(request)) for request in requests]
        except TimeoutError as error:
            cause = TimeoutError(f"nothing for {stall_s:g} s, {len(requests) - ended} pending")
            raise StageError("evaluate", "", cause) from error
    return [task.result() for task in running]


async def measure_pass_rate(
    generator: Generator,
    verifier: Verifier,
    prompts: Sequence[Prompt],
    samples: int,
    *,
    temperature: float | None = None,
    progress: OnScored | None = None,
    stall_s: float = STALL_S,
    record: Callable[[Sequence[Scored]], Awaitable[None]] | None = None,
) -> PassRate:
    """Draw and judge ``samples`` samples per prompt, at ``temperature`` (None: the rollouts'). ``record`` gets all of
    them at the end, in the order of the prompts; they are kept nowhere else.

    Generator and verifier must be started, with a version loaded. ``record.solved`` says what a pass is. Raises
    StageError for what these two raise, and when no sample ends for ``stall_s`` seconds.
    """
    if samples < 1:
        raise ConfigError("samples", samples, "use 1 or more")
    # Negative groups: ids that no training sample has.
    requests = [Request(-1 - g, s, prompt, temperature) for g, prompt in enumerate(prompts) for s in range(samples)]

    def on_scored(_: Scored, ended: int) -> None:
        if progress is not None:
            progress(ended, len(requests))

    loop = asyncio.get_running_loop()
    began = loop.time()
    scored = await score_answers(generator.generate, verifier, requests, on_scored, stall_s=stall_s)
    rate = PassRate(tallied(scored), samples, temperature, loop.time() - began)
    if record is not None:
        await record(scored)
    return rate


def tallied(samples: Iterable[Scored]) -> tuple[ProblemTally, ...]:
    """A tally per group, in the order of their first samples."""
    return tuple(map(_tally, by_group(samples)))


def _tally(outcomes: Sequence[Scored]) -> ProblemTally:
    scored = [s for s in outcomes if s.reward is not None]
    rewards = {s.reward for s in scored}
    return ProblemTally(
        id=outcomes[0].trajectory.request.prompt.id,
        passes=sum(map(solved, scored)),
        samples=len(scored),
        failed=len(outcomes) - len(scored),
        truncated=sum(s.trajectory.truncated for s in scored),
        tokens=sum(s.trajectory.sampled for s in scored),
        rewards=None if rewards <= {0.0, 1.0} else fsum(s.reward for s in scored if s.reward is not None),
    )


def pass_at_k(samples: int, passes: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k samples passes, of ``samples`` >= k of which ``passes`` did:
    1 - C(n-c, k) / C(n, k) (Chen et al. 2021, eq. 1).
    """
    return 1.0 - comb(samples - passes, k) / comb(samples, k)


def paired_change(before: PassRate, after: PassRate) -> Estimate:
    """The change of pass@1, or of the mean reward, over the problems that both judged.

    Narrower than the difference of two intervals, since each problem is compared with itself.
    """
    old = {tally.id: tally.reward for tally in before.tallies if tally.samples}
    changes = [tally.reward - old[tally.id] for tally in after.tallies if tally.samples and tally.id in old]
    interval = change_interval if before.binary and after.binary else mean_interval
    return Estimate(mean(changes), *interval(changes), len(changes))
