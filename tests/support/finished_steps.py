"""Samples, groups and steps that have ended, made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from overlap.core import Batch, Group, Prompt, Request, Scored, StepReport, Trajectory, VersionSpan
from overlap.pipeline.learning import StepResult
from sandbox.core.excerpt import Excerpt
from sandbox.core.nouns import CaseResult, Judgement, Verdict

PROMPT = Prompt("p", (1, 2))
SAID = {"got": Excerpt.of(b"\xff" * 2000), "stderr": Excerpt.of("no\n"), "exit_code": 1}
WRONG = CaseResult(1, Verdict.WA, 0.3, 0.4, 8, "no", (("judge.txt", "x"),), **SAID)
CASES = (CaseResult(0, Verdict.AC, 0.1, 0.2, 7, exit_code=0), WRONG)
JUDGED = Judgement("p", Verdict.WA, CASES, 1, 3, True, "B", "python", "3.11", "warning: \ud800", 0.25, 0.5, 0.125)


def scored(group: int, sample: int, reward: float | None = 1.0, **fields: Any) -> Scored:
    """A sample whose generation took [started, ended] and whose verification [verify, verdict]; ``says`` is its verdict
    by ``node``.
    """
    at = {"started": 0.0, "ended": 1.0, "verify": 1.0, "verdict": 2.0, "tokens": 4, "finish": "stop", "version": 0}
    at |= {"node": "", "run_s": 1.0} | fields
    count, spans = at["tokens"], (VersionSpan(at["version"], 0, at["tokens"]),)
    numbers = (7,) * count, (-0.1,) * count
    request = Request(group, sample, PROMPT)
    trajectory = Trajectory(request, *numbers, "x", at["finish"], spans, at["started"], at["ended"])
    judgement = None
    if "says" in at:
        judgement = replace(JUDGED, verdict=Verdict(at["says"]), node=at["node"], run_s=at["run_s"])
    failure = "" if reward is not None else "worker died"
    return Scored(trajectory, reward, judgement, failure, at["ended"], at["verify"], at["verdict"])


def group(number: int, *samples: Scored, dropped: str = "") -> Group:
    return Group(number, PROMPT, samples, (0.0,) * len(samples), dropped)


def result(
    *groups: Group, step: int = 3, version: int = 0, report: StepReport | None = None, **fields: Any
) -> StepResult:
    kept, lost = (tuple(g for g in groups if bool(g.dropped) is dropped) for dropped in (False, True))
    spans = dict.fromkeys(("learn_span", "sync_span", "parity_span"), (0.0, 0.0))
    return StepResult(Batch(step, version, kept, lost), report, **(spans | {"parity": 0.01} | fields))


def awkward(number: int = 4, later_s: float = 0.0, **fields: Any) -> Scored:
    """A sample with values that a file could spoil."""
    spans = (VersionSpan(3, 0, 2), VersionSpan(4, 2, 3))
    text = "a lone \udc80, a line's \u2028 end\n"
    request = Request(number, 1, Prompt(f"p{number % 3}", (1, 2, number % 3)))
    began, ended, started, judged = (later_s + at for at in (10.0, 12.5, 13.0, 14.0))
    trajectory = Trajectory(request, (5, 2**31 - 1, 0), (-0.1, -1e-30, 0.0), text, "stop", spans, began, ended)
    return Scored(replace(trajectory, **fields), 0.1, JUDGED, "", ended, started, judged)


def given_up(number: int = 5) -> Scored:
    """A sample that was never verified."""
    request = Request(number, 0, Prompt(f"p{number % 3}", (1, 2, number % 3)))
    return Scored(Trajectory(request, (), (), "", "abort", (), 9.0, 11.0), None, None, "no end of generate")
