"""``overlap.judge_again`` and its command: judge what a run has kept by a changed task, verifier or set of tests."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from overlap.analysis.sample_file import SampleFile
from overlap.atomic import guarded, made_whole
from overlap.commands.standalone import ServingParts, run_standalone
from overlap.config.arguments import path_given
from overlap.config.load import load_config
from overlap.core import Prompt, Task
from overlap.errors import ConfigError, count_of, one_line
from overlap.prepare.run_inputs import RunInputs
from overlap.prepare.task_prompts import task_prompts
from overlap.record.digest import data_digest
from overlap.record.logs import OpenConsole, guest, quiet
from overlap.record.ownership import check_out, find_run_file, write_config
from overlap.record.progress import Progress
from overlap.record.rollouts import Rollouts
from overlap.record.run_files import RunFile
from overlap.replay.judge_again import (
    KeptSample,
    PromptKey,
    RejudgedRun,
    judge_samples,
    kept_samples,
    rollouts_line,
    shown_samples,
)
from overlap.replay.kept_rollouts import NEEDS, steps_in
from sandbox.pool.quotas import cores

OTHER_PROMPT = "the prompt of this name asks something else now"


def judge_again(
    run: str | Path,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    task: Task | None = None,
    *,
    out: str | Path | None = None,
) -> RejudgedRun:
    """Judge the samples that the run directory ``run`` has kept, by its configuration with ``overrides`` of fields, or
    by ``task``. No engine and no learner is started.

    ``out``: a folder that is not there yet, for the samples of ``rollouts.jsonl`` with their new rewards:
    ``overlap.train(cfg, rollouts=out)`` learns from it. Prints its progress on stderr. Raises ConfigError and
    OverlapError.
    """
    named = path_given("run", run, "runs/first")
    target = path_given("out", out, "runs/first-again") if out is not None else None
    return _Rejudging(str(named), overrides, task, target).judged(partial(guest, stream=sys.stderr))


def judge_again_command(args: argparse.Namespace) -> Iterator[str]:
    """Yield the report of ``overlap judge-again``."""
    if args.task and args.reward:
        raise ConfigError("--task", args.task, "--reward is a task too: leave one of them out")
    options = ["data.options={}"] if args.reward else []  # those of the run belong to its own task
    overrides = [*options, *([f"data.task={args.task}"] if args.task else []), *args.overrides]
    found = _Rejudging(args.run, overrides, None, args.out).judged(quiet)
    if args.json:
        yield json.dumps(found.to_json(), indent=1, ensure_ascii=False)
    else:
        yield from found.lines(args.limit)


class _Rejudging:
    """What is judged by what, checked before anything is started."""

    def __init__(
        self, run: str, overrides: Sequence[str] | Mapping[str, Any], task: Task | None, out: Path | None
    ) -> None:
        self._task, self._out = task, out
        config = find_run_file(run, RunFile.CONFIG, field="RUN", way_out="name a run directory")
        self._folder = config.parent
        here = f"verify.workers={cores()}"
        self._old = load_config(config, [here])
        given = overrides if isinstance(overrides, Mapping) else list(overrides)
        self._cfg = self._old.replace(given) if given else self._old
        kept = RunFile.ROLLOUTS.of(self._folder)
        self._rollouts = Rollouts.load(kept) if kept.is_file() else None
        if self._rollouts is None and not RunFile.TRAJECTORIES.of(self._folder).is_file():
            way_out = "has kept no samples: run.keep_rollouts=true keeps all, run.samples some to look at"
            raise ConfigError("RUN", run, way_out)
        if out is not None and self._rollouts is None:
            way_out = f"{run} has no {RunFile.ROLLOUTS} to learn from (run.keep_rollouts): leave --out away"
            raise ConfigError("--out", str(out), way_out)
        if out is not None:
            check_out(out, folder=True)

    def judged(self, output: OpenConsole) -> RejudgedRun:
        """Judge, and write ``out`` whole or not at all."""
        source = self._rollouts.path if self._rollouts else RunFile.TRAJECTORIES.of(self._folder)
        found = RejudgedRun(source, out=self._out)
        with ExitStack() as stack:
            making = stack.enter_context(made_whole(self._out)) if self._out is not None else None
            with ExitStack() as writing:
                lines = None
                if making is not None:
                    with guarded(making):
                        making.mkdir()
                        lines = writing.enter_context(RunFile.ROLLOUTS.of(making).open("w", encoding="utf-8"))
                work = partial(self._work, found, lines)
                run_standalone(self._cfg, work, task=self._task, output=output, wanted=lambda: ("verifier",))
            self._check_any(found)
            if making is not None:
                found.note = self._finish(making)
        return found

    def _check_any(self, found: RejudgedRun) -> None:
        """Raises ConfigError where no sample could be judged, so that nothing is compared."""
        if found.left_out and not found.samples:
            why = ", ".join(f"{count_of(n, 'sample')}: {why}" for why, n in found.left_out.most_common())
            way_out = f"nothing of {self._folder} can be judged again by it ({why}); name the data that it answered"
            raise ConfigError("data.train", self._cfg.data.train, way_out)

    async def _work(self, found: RejudgedRun, lines: TextIO | None, parts: ServingParts) -> None:
        inputs = self._inputs = parts.inputs
        prompts = _by_name(inputs.train, inputs.heldout)
        self._digest = data_digest(inputs.train)

        def write(rows: Sequence[Mapping[str, Any]]) -> None:
            if lines is not None:
                lines.writelines(map(rollouts_line, rows))

        write([{"rollouts": 1, "data": self._digest}])
        kept, count = self._kept()
        with Progress(parts.console, count) as progress:
            await judge_samples(
                kept,
                prompts,
                self._other(inputs, prompts, parts),
                parts.verifier.score,
                found,
                write,
                lambda done: progress.live(f"judged {done}/{count}"),
            )

    def _kept(self) -> tuple[Iterator[KeptSample], int]:
        if self._rollouts is not None:
            return kept_samples(self._rollouts), len(self._rollouts.lines)
        samples = SampleFile(RunFile.TRAJECTORIES.of(self._folder))
        return shown_samples(samples), len(samples)

    def _other(
        self, inputs: RunInputs, prompts: Mapping[PromptKey, Prompt], parts: ServingParts
    ) -> Mapping[PromptKey, str]:
        """The prompts that asked something else when they were answered, as far as that can be known."""
        if self._rollouts is not None and self._rollouts.data == self._digest:
            return {}
        from overlap.task import load_task

        try:
            task = load_task(self._old.data.task, self._old)
            splits = task_prompts(task, inputs.tokenizer, self._old.model.prompt_tokens)
        except ConfigError as error:
            line = "whether the prompts are those that were answered is not known: the run's own task cannot be loaded"
            parts.console.print(f"{line} ({one_line(error, 200)})")
            return {}
        before = _by_name(splits["train"].prompts, splits["heldout"].prompts)
        return {key: OTHER_PROMPT for key, now in prompts.items() if _differ(before.get(key), now)}

    def _finish(self, making: Path) -> str:
        """Write the configuration for ``train --from-rollouts``; returns what it will find."""
        again = Rollouts.load(RunFile.ROLLOUTS.of(making))
        cfg, note = self._cfg, ""
        with suppress(ConfigError):
            cfg = self._cfg.replace(NEEDS)
        try:
            steps = steps_in(again, cfg, self._inputs.train)
        except ConfigError as error:
            steps, note = 0, f"train --from-rollouts will not take it: {error}"
        if steps:
            cfg, note = cfg.replace({"run.steps": steps}), f"{steps} steps for overlap train --from-rollouts"
        write_config(making, cfg.to_dict(), [])
        return note or "it has the samples of no whole step"


def _by_name(train: Sequence[Prompt], heldout: Sequence[Prompt]) -> dict[PromptKey, Prompt]:
    return {(split, p.id): p for split, some in (("train", train), ("heldout", heldout)) for p in some}


def _differ(before: Prompt | None, now: Prompt) -> bool:
    return before is not None and (tuple(before.token_ids), before.prefill) != (tuple(now.token_ids), now.prefill)
