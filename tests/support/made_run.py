"""Finished run directories that no training made: whatever reads a run is tried on them, healthy or ill.

    folder = made_run(tmp_path / "run")                                     # healthy: the reward rises
    folder = made_run(tmp_path / "ill", learn={"entropy": (0.9, 0.01)})     # one illness
    folder = made_run(tmp_path / "big", steps=50, groups=25, samples=8, kept="all", tokens=500, padding=11_000)

Samples, groups and evaluations are drawn from a seed; every file is written by the code that writes it in a run.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from array import array
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.core import Batch, Packed, Prompt, Request, Scored, StepReport, Trajectory, VersionSpan, kept_groups
from overlap.evaluation.evaluate import PassRate, tallied
from overlap.evaluation.history import EvaluationHistory
from overlap.evaluation.history import row as evaluation_row
from overlap.pipeline.advantage import complete
from overlap.pipeline.assemble import make_group
from overlap.pipeline.learning import StepResult
from overlap.record.logs import Console
from overlap.record.progress import Progress
from overlap.record.recorder import Recorder
from overlap.record.report import summary
from overlap.record.rundir import RunDir
from overlap.record.sample_writer import SampleWriter
from overlap.verify.verifier import program_digest
from sandbox.core.excerpt import Excerpt
from sandbox.core.nouns import Case, CaseResult, Judgement, Program, Verdict
from sandbox.core.problem import Problem

Course = tuple[float, float]
"""A figure at the first step and at the last one, on a straight line between them."""
HEALTHY: Mapping[str, Course] = {
    "loss": (0.01, 0.01), "entropy": (0.8, 0.6), "kl": (0.0, 0.02), "grad_norm": (0.5, 0.4), "lr": (1e-6, 1e-6),
    "clip_fraction": (0.01, 0.01), "ratio_mean": (1.0, 1.0), "ratio_max": (1.1, 1.1), "ratio_kl": (1e-5, 1e-5),
    "ratio_mean_abs_logdiff": (1e-3, 1e-3), "ratio_max_logdiff": (0.02, 0.02),
}  # fmt: skip
STEP_S = 10.0
_POOL = 1 << 14
_WRONG = {
    Verdict.WA: "def f(a, b):\n    return a - b\n",
    Verdict.RE: "def f(a, b):\n    return a + c\n",
    Verdict.TLE: "def f(a, b):\n    while a != b:\n        pass\n    return a\n",
    Verdict.CE: "def f(a, b)\n    return a + b\n",
}


@dataclass(frozen=True)
class RunShape:
    """What ``made_run`` takes, with the defaults of a healthy run. Shares are of samples, from 0 to 1."""

    steps: int = 6
    groups: int = 4
    samples: int = 4
    problems: int = 12
    heldout: int = 6
    eval_samples: int = 4
    eval_every: int = 0
    """Evaluations are made before and after the run, and every so many steps."""
    kept: Literal["some", "all", "none"] = "some"
    seed: int = 0
    solved: Course = (0.3, 0.8)
    """Chance that a sample is right; (0, 0) or (1, 1): no group teaches anything."""
    tokens: Course = (40.0, 40.0)
    """Mean response length."""
    padding: int = 0
    """Further characters of each answer."""
    truncated: Course = (0.0, 0.0)
    failed: float = 0.0
    """Samples that could not be judged."""
    weak: float = 0.0
    """Accepted samples whose verdict is weak."""
    duplicates: float = 0.0
    """Samples whose program is the same one, whatever the problem."""
    tests: int = 5
    """Cases of each problem; a sample that fails does so at the third."""
    staleness: int = 0
    """Age of all samples, in versions."""
    parity: float = 1e-6
    turns: int = 1
    """Above 1: each sample is an episode of so many turns, with a fork."""
    learn: Mapping[str, Course] = field(default_factory=dict)
    """Figures of the learner, instead of those in HEALTHY."""
    columns: Mapping[str, Course] = field(default_factory=dict)
    """Further columns of metrics.jsonl, by their whole names."""
    overrides: tuple[str, ...] = ()
    """Of the configuration, as on the command line."""
    exit: str = "finished"


def made_run(folder: Path, **shape: Any) -> Path:
    """Write a run of ``RunShape(**shape)`` into ``folder``, which must be new or empty; returns it."""
    RunMaker(folder, RunShape(**shape)).write()
    return folder


class RunMaker:
    """The parts of a made run; ``write`` makes all of it."""

    def __init__(self, folder: Path, shape: RunShape) -> None:
        self.shape, self._rng = shape, random.Random(shape.seed)
        self.cfg = _config(folder, shape)
        self._ids = array("i", (self._rng.randrange(3, 30_000) for _ in range(_POOL)))
        self._logprobs = array("f", (-self._rng.expovariate(2.0) for _ in range(_POOL)))
        self._prompts = {
            name: [_prompt(name, n, shape.tests) for n in range(getattr(shape, name))]
            for name in ("problems", "heldout")
        }
        self.run = RunDir.create(str(folder), self.cfg.to_dict())
        writer = SampleWriter(self.run, text_of, program_of, shape.kept, critic=self.cfg.learn.advantage == "gae")
        progress = Progress(Console(StringIO()), shape.steps)
        self.recorder = Recorder(self.run, progress, writer, max_staleness=self.cfg.rollout.max_staleness)
        self.recorder._began_s = STEP_S  # the clock of this run, which began one step before its first
        self.course = EvaluationHistory()

    def write(self) -> None:
        """Write every file, and close."""
        try:
            asyncio.run(self._steps())
            self.run.finish(self._summary())
        finally:
            self.recorder.close()
            self.run.close()

    async def _steps(self) -> None:
        shape = self.shape
        if shape.eval_samples and shape.heldout:
            self.course.before = await self._evaluate(0)
            self.run.step({"step": 0, **evaluation_row(self.course.before.figures())})
        for step in range(1, shape.steps + 1):
            due = shape.eval_every and step % shape.eval_every == 0 and step < shape.steps
            found = evaluation_row(self.course.add(step, await self._evaluate(step))) if due else {}
            extra = {name: self._at(course, step) for name, course in shape.columns.items()}
            await self.recorder.step(self.result_of(step), {**found, **extra})
        if self.course.before:
            row = evaluation_row(self.course.add(shape.steps, await self._evaluate(shape.steps)))
            self.run.step({"step": shape.steps, **row})

    def result_of(self, step: int) -> StepResult:
        """The step, as the loop would give it."""
        shape, first = self.shape, (step - 1) * self.shape.groups
        made = []
        for number in range(first, first + shape.groups):
            prompt = self._prompts["problems"][number % shape.problems]
            samples = [self._sample(step, Request(number, k, prompt)) for k in range(shape.samples)]
            made.append(make_group(number, prompt, samples, self.cfg.learn, self.cfg.model.response_tokens))
        groups = complete(tuple(made), self.cfg.learn)
        kept = tuple(group for group in groups if not group.dropped)
        batch = Batch(step, step - 1, kept, tuple(group for group in groups if group.dropped))
        begin = step * STEP_S
        spans = (begin + 6.0, begin + 8.0), (begin + 8.0, begin + 9.0), (begin + 9.0, begin + STEP_S)
        return StepResult(batch, self._report(batch) if kept else None, *spans, shape.parity)

    def _report(self, batch: Batch) -> StepReport:
        figures = {name: self._at(course, batch.step) for name, course in {**HEALTHY, **self.shape.learn}.items()}
        kept = kept_groups(batch)
        told = {s.id: self._learner(s.trajectory) for g in batch.groups if g.id in kept for s in g.samples}
        return StepReport(batch.step, batch.version + 1, 2.0, figures, told)

    def _learner(self, trajectory: Trajectory) -> tuple[Packed[float], ...]:
        return tuple(Packed("f", [lp - 0.01 for lp in branch.logprobs]) for branch in trajectory.branches)

    async def _evaluate(self, step: int) -> PassRate:
        prompts, k = self._prompts["heldout"], self.shape.eval_samples
        requests = [Request(-1 - n, sample, prompt) for n, prompt in enumerate(prompts) for sample in range(k)]
        samples = [self._sample(step, request) for request in requests]
        await self.recorder.evaluation(step, samples)
        return PassRate(tallied(samples), k, self.cfg.rollout.temperature, 3.0)

    def _at(self, course: Course, step: int) -> float:
        first, last = course
        return first + (last - first) * max(0, step - 1) / max(1, self.shape.steps - 1)

    def _sample(self, step: int, request: Request) -> Scored:
        shape, rng = self.shape, self._rng
        right = rng.random() < self._at(shape.solved, step)
        cut = rng.random() < self._at(shape.truncated, step)
        right = right and not cut
        copied = rng.random() < shape.duplicates
        verdict = Verdict.AC if right else rng.choice(list(_WRONG))
        source = "import os\nos._exit(0)\n" if copied else _WRONG.get(verdict, _right(request.prompt, rng))
        text = "So it adds both numbers. " * (1 + shape.padding // 25) + f"\n```python\n{source}```\n"
        queued = step * STEP_S + 1.0 + 3.0 * rng.random()
        trajectory = self._trajectory(step, request, text[: len(text) // 2] if cut else text, queued, cut=cut)
        blank = Scored(trajectory, None, None, "", queued, queued + 0.1, queued + 0.4)
        if rng.random() < shape.failed:
            return replace(blank, failure="WorkerLost: the judging process was killed (signal 9)")
        job = program_of(request.prompt, trajectory.text)
        if job is None:
            return replace(blank, reward=0.0)
        judgement = _judgement(*job, verdict, weak=verdict is Verdict.AC and rng.random() < shape.weak)
        return replace(blank, reward=float(right), judgement=judgement, program_sha256=program_digest(job[1]))

    def _trajectory(self, step: int, request: Request, text: str, ended: float, *, cut: bool) -> Trajectory:
        shape, rng = self.shape, self._rng
        count = max(1, round(self._at(shape.tokens, step) * rng.uniform(0.7, 1.3)))
        version = max(0, step - 1 - shape.staleness)
        spans: tuple[VersionSpan, ...] = (VersionSpan(version, 0, count),)
        if shape.staleness and count > 1:
            spans = VersionSpan(version, 0, count // 2), VersionSpan(version + 1, count // 2, count)
        ids, logprobs = self._numbers(count)
        began = ended - 1.0 - rng.random()
        made = Trajectory(request, ids, logprobs, text, "length" if cut else "stop", spans, began, ended)
        return _episode(made, shape.turns) if shape.turns > 1 else made

    def _numbers(self, count: int) -> tuple[Packed[int], Packed[float]]:
        at, times = self._rng.randrange(_POOL), 1 + count // _POOL
        cut = slice(at, at + count)
        return Packed("i", (self._ids * (times + 1))[cut]), Packed("f", (self._logprobs * (times + 1))[cut])

    def _summary(self) -> dict[str, Any]:
        shape, rows = self.shape, self.recorder.rows
        after = shape.steps if shape.exit == "finished" else None
        return summary(
            rows,
            reason=shape.exit,
            seconds=STEP_S * shape.steps,
            run_dir=self.run.path,
            evaluations=self.course.summary(after),
            measure=self.course.measure,
            extra={
                "prompts": {"train": shape.problems, "heldout": shape.heldout},
                "policy": {"path": str(self.run.policy), "saved": True},
                "restarts": [],
                "engine_outages_s": [],
                "not_written": [],
            },
        )


def _config(folder: Path, shape: RunShape) -> Config:
    return load_config(
        None,
        [
            f"run.dir={folder}",
            f"run.steps={shape.steps}",
            f"run.seed={shape.seed}",
            f"run.samples={shape.kept}",
            f"run.eval_samples={shape.eval_samples}",
            f"run.eval_every={shape.eval_every}",
            f"rollout.groups_per_step={shape.groups}",
            f"rollout.samples_per_group={shape.samples}",
            f"rollout.max_staleness={shape.staleness}",
            *shape.overrides,
        ],
    )


def _prompt(split: str, number: int, tests: int) -> Prompt:
    """The sum of two numbers, with an offset of its own, so that problems differ."""
    cases = tuple(Case(f"[{a}, {a + 1}]", str(2 * a + 1 + number)) for a in range(tests))
    data = SimpleNamespace(problem=Problem(f"{split[0]}{number}", "function", cases, "f"), offset=number)
    return Prompt(
        f"{split}-{number}", tuple(range(100, 130 + number % 7)), data=data, place=f"{split}.jsonl:{number + 1}"
    )


def text_of(prompt: Prompt) -> str:
    """What the prompt asks, as a tokenizer would decode it."""
    return f"Write a function f(a, b) that returns the sum of a and b, and {prompt.data.offset} more.\n"


def _right(prompt: Prompt, rng: random.Random) -> str:
    name = rng.choice(("total", "result", "answer", "value"))
    return f"def f(a, b):\n    {name} = a + b + {prompt.data.offset}\n    return {name}\n"


def program_of(prompt: Prompt, answer: str) -> tuple[Problem, Program] | None:
    """The program between the fences, as a task gives it."""
    source = answer.partition("```python\n")[2].partition("```")[0]
    return (prompt.data.problem, Program(source)) if source else None


def _judgement(problem: Problem, program: Program, verdict: Verdict, *, weak: bool) -> Judgement:
    cases: list[CaseResult] = []
    for index in range(0 if verdict is Verdict.CE else len(problem.cases)):
        if verdict is Verdict.AC or index < 2:
            cases.append(CaseResult(index, Verdict.AC, 0.01, 0.02, 9 << 20))
            continue
        cases.append(_failed_case(index, verdict))
        break
    log = "  File \"main.py\", line 1\n    def f(a, b)\nSyntaxError: expected ':'\n" if verdict is Verdict.CE else ""
    passed = sum(case.verdict is Verdict.AC for case in cases)
    total, tools = len(problem.cases), ("B", program.language, "CPython 3.11")
    return Judgement(problem.id, verdict, tuple(cases), passed, total, weak, *tools, log, 0.1, 0.3)


def _failed_case(index: int, verdict: Verdict) -> CaseResult:
    message = {Verdict.WA: "wrong value", Verdict.RE: "NameError", Verdict.TLE: "4.0 s of CPU"}[verdict]
    said: dict[str, Any] = {
        Verdict.WA: {"got": Excerpt.of("-1"), "exit_code": 0},
        Verdict.RE: {"stderr": Excerpt.of("NameError: name 'c' is not defined\n"), "exit_code": 1},
        Verdict.TLE: {},
    }[verdict]
    return CaseResult(index, verdict, 4.0 if verdict is Verdict.TLE else 0.01, 0.02, 9 << 20, message, **said)


def _episode(made: Trajectory, turns: int) -> Trajectory:
    """An episode whose answer follows on what a tool said, with a branch that was left."""
    from overlap.core import Used

    count = len(made.token_ids)
    mask = bytes(0 if count // 3 <= k < count // 2 else 1 for k in range(count))
    fork = replace(made, text="", mask=b"", prompt_ids=(*made.prompt_ids, 7, 8))
    return replace(made, mask=mask, turns=turns, forks=(fork,), used=Used(turns, 2 * count, 3 * count, count, 0, 0))


def main() -> None:
    """Write a run by hand: python tests/support/made_run.py FOLDER steps=50 kept=all"""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("shape", nargs="*", help=f"NAME=VALUE of {', '.join(asdict(RunShape()))}")
    args = parser.parse_args()
    given = dict(word.split("=", 1) for word in args.shape)
    shape = {name: value if name in ("kept", "exit") else _number(value) for name, value in given.items()}
    sys.stdout.write(f"{made_run(args.folder, **shape)}\n")


def _number(text: str) -> Any:
    """2, 0.5, or a course as in 40:90."""
    if ":" in text:
        return tuple(float(part) for part in text.split(":"))
    return float(text) if "." in text else int(text)


if __name__ == "__main__":
    main()
