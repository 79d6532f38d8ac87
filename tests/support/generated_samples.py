"""Samples of every shape that the types allow, from a seed: single responses, episodes with forks, failed ones."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any, TypeVar, get_args

from overlap.core import Finish, Prompt, Request, Scored, Trajectory, Used, VersionSpan
from sandbox.core.nouns import CaseResult, Judgement, Verdict

T = TypeVar("T")
TEXTS = (
    "",
    "x",
    "two\nlines\u2028",
    "\x00\x7f",
    "caf\u00e9 \U0001f600",
    "\udc80 alone",
    "\ud83d\ude00 two halves",
    "\\ud83d",
)
IDS = (0, 1, 7, 2**31 - 1, -(2**31))
LOGPROBS = (0.0, -0.0, -0.1, -1e-30, -7.25, -1e30)


def generated_prompt(group: int) -> Prompt:
    """The prompt of a group; a read sample gets it from the data, not from the file."""
    rng = random.Random(group)
    return Prompt(f"p{group}", _some(rng, IDS, 1, 4), prefill=rng.choice(TEXTS), data=group)


def generated_sample(seed: int) -> Scored:
    """Sample ``seed % 4`` of group ``seed // 4``."""
    rng = random.Random(seed)
    request = Request(seed // 4, seed % 4, generated_prompt(seed // 4), **_asked(rng))
    trajectory = _branch(rng, request, depth=rng.choice((0, 0, 1, 1, 2)))
    failure = _sometimes(rng, rng.choice(TEXTS), "")
    reward = None if failure or not rng.randrange(6) else rng.choice((0.0, 1.0, -0.5, 1 / 3))
    times = [_sometimes(rng, rng.uniform(-50, 50), 0.0) for _ in range(3)]
    judgement, program = _sometimes(rng, _judgement(rng), None), rng.choice(("", "0123456789abcdef"))
    return Scored(trajectory, reward, judgement, failure, *times, program)


def _asked(rng: random.Random) -> dict[str, Any]:
    asked = {"temperature": 0.0, "top_p": 0.5, "turn": 3, "max_tokens": 9, "stop": ("```", "\udc80")}
    return {name: value for name, value in asked.items() if not rng.randrange(8)}


def _branch(rng: random.Random, request: Request, depth: int) -> Trajectory:
    """``depth``: how deep forks may be nested. What is in front of a branch is the request's prompt, a prefix of it,
    more than it, or something else, whatever its mask says.
    """
    count = rng.choice((0, 1, 1, 2, 5, 9))
    own = tuple(request.prompt.token_ids)
    return Trajectory(
        request=request,
        token_ids=_some(rng, IDS, count, count),
        logprobs=_some(rng, LOGPROBS, count, count),
        text=rng.choice(TEXTS),
        finish=rng.choice(get_args(Finish)),
        spans=_spans(rng, count),
        started_s=rng.uniform(-50, 50),
        finished_s=rng.uniform(-50, 50),
        prompt_ids=rng.choice(((), own, own[:1], (*own, *_some(rng, IDS, 1, 6)), _some(rng, IDS, 1, 6))),
        mask=_sometimes(rng, bytes(rng.randrange(2) for _ in range(count)), b""),
        turns=rng.choice((0, 1, 1, 2, 16)),
        forks=tuple(_branch(rng, request, depth - 1) for _ in range(rng.randrange(4) if depth else 0)),
        failure=_sometimes(rng, rng.choice(TEXTS), ""),
        cached_tokens=rng.choice((0, 0, 16)),
        used=_sometimes(rng, _used(rng), None),
    )


def _spans(rng: random.Random, count: int) -> tuple[VersionSpan, ...]:
    ends = sorted(rng.randint(0, count) for _ in range(rng.randrange(4)))
    return tuple(VersionSpan(rng.randrange(9), a, b) for a, b in pairwise(ends))


def _judgement(rng: random.Random) -> Judgement:
    cases = tuple(
        CaseResult(
            index=n,
            verdict=rng.choice(list(Verdict)),
            cpu_s=rng.random(),
            wall_s=rng.random(),
            memory_bytes=rng.randrange(2**40),
            message=rng.choice(TEXTS[:6]),
            feedback=_sometimes(rng, (("judge.txt", "\udc80 x"),), ()),
        )
        for n in range(rng.randrange(3))
    )
    words = "python", "3.11", rng.choice(TEXTS[:6])
    figures = rng.random(), rng.random(), rng.choice((None, 0.0, 0.125))
    passed, weak, tier = rng.randrange(3), rng.random() < 0.5, rng.choice("ABC")
    verdict, node = rng.choice(list(Verdict)), rng.choice(("", "10.0.0.2"))
    return Judgement("p", verdict, cases, passed, 3, weak, tier, *words, *figures, node, rng.choice(("", "cpu")))


def _some(rng: random.Random, of: tuple[Any, ...], least: int, most: int) -> tuple[Any, ...]:
    return tuple(rng.choice(of) for _ in range(rng.randint(least, most)))


def _sometimes(rng: random.Random, value: T, other: T) -> T:
    return value if rng.randrange(2) else other


def _used(rng: random.Random) -> Used:
    counts = (rng.randrange(100) for _ in range(6))
    refused, ignored = ({"n": rng.randrange(1, 9)} if rng.random() < 0.5 else {} for _ in range(2))
    return Used(*counts, rng.random() < 0.5, rng.randrange(100), refused, ignored)
