"""``scripts/eval_deepcoder.sh``: pass rates of a policy on published sets, or on problems of your own.

    sets ──▶ prompts ──▶ what answers.jsonl lacks is drawn and judged ──▶ a table, and evaluation.json

Every answer is written down the moment it is there. The same command goes on where it was stopped; asked for more
samples or further sets it draws only those.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from overlap.cli import command, ending_in_order, print_output
from overlap.commands.parsers import positive
from overlap.commands.standalone import ServingParts, check_engines, run_standalone
from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.core import Prompt
from overlap.core.errors import ConfigError
from overlap.core.json_types import to_json_types
from overlap.pipeline.dataset_filter import PromptSplit, check_splits, filter_prompts
from overlap.placement.devices import devices_here, with_dtype
from overlap.policy.check import policy_digest
from overlap.policy.resolve import DEFAULT_POLICY, resolve_policy
from overlap.process.atomic import is_stdout, write_atomic
from overlap.process.scratch import scratch_directory
from overlap.record.logs import quiet
from overlap.record.progress import Progress
from overlap.run.run_inputs import RunInputs, load_tokenizer
from recipes.code_rl import evaluation_report as report
from recipes.code_rl.answer_file import AnswerFile, SamplingOptions, complete_answers
from recipes.code_rl.command_line import Parser, counts, day
from recipes.code_rl.evaluation_sets import (
    HELD_OUT,
    KNOWN,
    PUBLISHED,
    ContestWindow,
    EvaluationSet,
    EvaluationTask,
    RequestedSet,
    code_task,
    read_set,
    requested_sets,
)
from recipes.code_rl.task import SPLITS
from sandbox.pool.quotas import cores

_CONFIGS = Path(__file__).parent / "configs"
DEFAULT_CONFIG = _CONFIGS / "cpu_smollm2.yaml"
OTHER_CONFIG = _CONFIGS / "eval_deepcoder.yaml"


@dataclass
class Evaluation:
    """A requested evaluation and its results."""

    cfg: Config
    sets: tuple[RequestedSet, ...]
    draw: SamplingOptions
    ks: tuple[int, ...]
    out: Path | None
    limit: int | None
    splits: dict[str, PromptSplit] = field(default_factory=dict)
    read: tuple[EvaluationSet, ...] = ()
    file: AnswerFile | None = None
    seconds: float = 0.0

    def prepare(self, scratch: Path, *, read_only: bool = False) -> RunInputs:
        """Load policy, tokenizer and problems; open the file of answers. Raises ConfigError, RunDirError."""
        with quiet(scratch / "prepare.log"):
            devices_here(self.cfg.run.device)  # refuses a GPU that is not there
            cfg = with_dtype(self.cfg)
            policy = resolve_policy(cfg.model.policy)
            tokenizer = load_tokenizer(policy)
            self.read = tuple(read_set(asked, cfg) for asked in self.sets)
            task = EvaluationTask(code_task(cfg), self.read, self.limit)
            entries = {found.asked.name: task.of_set(tokenizer, found) for found in self.read}
        cfg = with_room(cfg, policy, [len(e.token_ids) for of in entries.values() for e in of if isinstance(e, Prompt)])
        self.splits = {name: filter_prompts(of, cfg.model.prompt_tokens) for name, of in entries.items()}
        for name, intake in self.splits.items():
            check_splits({name: intake}, name)
            if not intake.prompts:
                reasons = "; ".join(intake.lines()) or "it is empty"
                raise ConfigError(f"--set {name}", "", f"gives no prompt to answer: {reasons}")
        prompts = tuple(p for intake in self.splits.values() for p in intake.prompts)
        settings = sampling_settings(cfg, policy, self.draw)
        self.out = self.out or Path("runs") / f"eval-{_short_name(cfg.model.policy)}-{report.digest(settings)[:6]}"
        path = self.out / "answers.jsonl"
        if self.cfg.model.dtype == "auto" and (dtype := AnswerFile.sampled_by(path).get("dtype")):
            cfg = _with_model(cfg, dtype=dtype)  # a file goes on in the number type that it was begun in
            settings["dtype"] = cfg.dtype
        self.file = AnswerFile.read(path, settings) if read_only else AnswerFile.open(path, settings)
        # What an engine draws follows from its seed: one that goes on must not draw the same answers again.
        cfg = replace(cfg, run=replace(cfg.run, seed=cfg.run.seed + len(self.file.known)))
        return RunInputs(cfg, task, policy, tokenizer, (), prompts, self.splits)

    def wanted(self) -> tuple[str, ...]:
        """The parts that are needed: none where every answer is there, and judged."""
        assert self.file is not None
        prompts = [p for intake in self.splits.values() for p in intake.prompts]
        undrawn, unjudged = self.file.missing(prompts, self.draw.samples)
        return (*(("engine",) if undrawn else ()), *(("verifier",) if undrawn or unjudged else ()))

    async def work(self, parts: ServingParts) -> None:
        """Sample and judge what the file lacks."""
        assert self.file is not None
        prompts, began = parts.inputs.heldout, time.monotonic()
        undrawn, unjudged = self.file.missing(prompts, self.draw.samples)
        parts.console.print(
            f"{len(prompts)} problems x {self.draw.samples} answers: {undrawn} to draw, {unjudged} more to judge; "
            f"they are kept in {self.file.path}"
        )
        if not undrawn + unjudged:
            return
        total = len(prompts) * self.draw.samples
        with Progress(parts.console, total, done=total - undrawn - unjudged) as progress:
            told = _Told(progress, parts.console.tty)
            try:
                through, stall_s = (parts.generator, parts.verifier), self.cfg.run.stall_s
                await complete_answers(*through, prompts, self.draw, self.file, progress=told, stall_s=stall_s)
            except (asyncio.CancelledError, KeyboardInterrupt):
                parts.console.print("stopped: the same command goes on from here")
                raise
            finally:
                self.seconds = time.monotonic() - began

    def figures(self) -> dict[str, Any]:
        """Return the content of ``evaluation.json``."""
        assert self.file is not None
        sets = [
            report.set_figures(found, self.splits[found.asked.name], self.file, self.draw.samples, self.ks, self.limit)
            for found in self.read
        ]
        return report.evaluation(self.cfg.model.policy, self.file.settings, self.draw.samples, sets, self.seconds)


class _Told:
    """Says how far it is: live on a terminal, else a line per tenth."""

    def __init__(self, progress: Progress, live: bool) -> None:
        self._progress, self._live, self._tenth = progress, live, 0

    def __call__(self, done: int, of: int) -> None:
        self._progress.live(f"judged {done}/{of}")
        if not self._live and done * 10 // of > self._tenth:
            self._tenth = done * 10 // of
            self._progress.console.print(f"judged {done}/{of}")


def sampling_settings(cfg: Config, policy: Path, draw: SamplingOptions) -> dict[str, Any]:
    """Return the settings that all answers of one file share; their number is not included."""
    return {
        "policy": policy_digest(policy),
        "temperature": draw.temperature,
        "top_p": draw.top_p,
        "response_tokens": cfg.model.response_tokens,
        "stop": list(cfg.rollout.stop),
        "dtype": cfg.dtype,
        "seed": cfg.run.seed,
    }


def with_room(cfg: Config, policy: Path, lengths: Sequence[int]) -> Config:
    """With room for the longest prompt, as far as the policy has it: a problem that is left out changes a figure."""
    shape = json.loads((policy / "config.json").read_text(encoding="utf-8"))
    context = (shape.get("text_config") or shape).get("max_position_embeddings")
    longest = max(lengths, default=0)
    if isinstance(context, int):
        longest = min(longest, context - 1 - cfg.model.response_tokens)  # the engine keeps one for its probes
    return _with_model(cfg, prompt_tokens=max(cfg.model.prompt_tokens, longest))


def _with_model(cfg: Config, **fields: Any) -> Config:
    """Replace fields of the model section; the needs of a learner do not matter."""
    model = replace(cfg.model, **fields)
    context = model.prompt_tokens + max(model.response_tokens, cfg.episode.tokens)
    learn = replace(cfg.learn, micro_batch_tokens=max(cfg.learn.micro_batch_tokens, context))
    return replace(cfg, model=model, learn=learn)


def _short_name(policy: str) -> str:
    """A name for files: of ``runs/first/policy`` that is ``first``."""
    parts = [part for part in Path(policy).parts if part not in ("/", ".", "..")]
    named = [part for part in parts if not part.startswith("policy")] or parts or ["policy"]
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in named[-1]).lower()


def located(policy: str, config: str | None) -> tuple[str, Path]:
    """The policy and the configuration that it is asked by: ``--config``, else the one of the run that it is of, else
    the recipe's for the default policy, or for policies that reason.
    """
    path = Path(policy).expanduser()
    if (path / "config.yaml").is_file() and (path / "policy").is_dir():
        path = path / "policy"  # a run's directory
        policy = str(path)
    if config is not None:
        return policy, Path(config)
    if path.name.partition("-")[0] == "policy" and (beside := path.parent / "config.yaml").is_file():
        return policy, beside
    return policy, DEFAULT_CONFIG if policy.lower() in ("", DEFAULT_POLICY) else OTHER_CONFIG


def fitting_here() -> dict[str, int]:
    """Settings of this machine for ``OTHER_CONFIG``: half of the cores judge, all GPUs generate."""
    gpus = len(devices_here().names)
    parallel = max(n for n in (1, 2, 4) if max(1, gpus) % n == 0)
    engines = {"rollout.tensor_parallel": parallel, "rollout.replicas": 0}
    return {"verify.workers": max(1, cores() // 2), **engines}


def evaluation_of(args: argparse.Namespace) -> Evaluation:
    """Return the evaluation that the command line requests. Raises ConfigError."""
    policy, path = located(args.policy, args.config)
    here = [f"{name}={value}" for name, value in fitting_here().items()] if path == OTHER_CONFIG else []
    heldout = cfg = load_config(path, [*here, *args.overrides])
    tokens = args.tokens or cfg.model.response_tokens
    cfg = _with_model(cfg, policy=policy or cfg.model.policy, response_tokens=tokens)
    if args.out is not None and (is_stdout(args.out) or (args.out.exists() and not args.out.is_dir())):
        raise ConfigError(
            "--out", str(args.out), f"is {'standard output' if is_stdout(args.out) else 'a file'}; name a folder"
        )
    draw = SamplingOptions(args.samples, args.temperature, args.top_p)
    ks = args.k or tuple(k for k in (1, 8) if k <= draw.samples)
    if ks[-1] > draw.samples:
        raise ConfigError("--k", ks[-1], f"pass@k needs k samples: use at most --samples={draw.samples}")
    window = ContestWindow(args.first, args.last)
    if window.first and window.last and window.first > window.last:
        raise ConfigError("--from", str(window.first), f"is after --to {window.last}")
    default = (HELD_OUT,) if not heldout.data.heldout else PUBLISHED
    sets = requested_sets(args.sets or (), window, default)
    return Evaluation(_with_held_out(cfg, heldout), sets, draw, tuple(sorted({1, *ks})), args.out, args.limit)


def _with_held_out(cfg: Config, of: Config) -> Config:
    """Keep the configuration's held-out problems for any policy, so that figures can be compared."""
    measured = SPLITS.get(of.model.policy.lower())
    if cfg.data.train or cfg.data.heldout or measured is None:
        return cfg
    return replace(cfg, data=replace(cfg.data, train=str(measured)))


def evaluate_parser() -> Parser:
    text = "Pass rates of a policy on published sets, on files, or on the problems that the repository ships."
    made = Parser(prog="eval_deepcoder.sh", description=text)
    made.add_argument("policy", nargs="?", default="", metavar="POLICY", help="a directory, a hub id, a run (default)")
    known = ", ".join((*KNOWN, HELD_OUT))
    text = f"NAME, NAME=SOURCE or SOURCE, may be given again; known are {known} (the configuration's, or published)"
    made.add_argument("--set", dest="sets", action="append", metavar="SET", help=text)
    made.add_argument("--samples", type=positive, default=16, metavar="N", help="answers to each problem (16)")
    made.add_argument("--k", type=counts, default=(), metavar="K,K", help="k of pass@k beside 1 (8)")
    made.add_argument("--temperature", type=float, default=0.6, metavar="T", help="sampling temperature (0.6)")
    made.add_argument(
        "--top-p", type=float, default=0.95, metavar="P", help="share of the probability drawn from (0.95)"
    )
    made.add_argument(
        "--tokens", type=positive, default=None, metavar="N", help="longest answer (model.response_tokens)"
    )
    made.add_argument("--from", dest="first", type=day, default=None, metavar="DATE", help="contests from this day on")
    made.add_argument("--to", dest="last", type=day, default=None, metavar="DATE", help="contests up to this day")
    made.add_argument("--limit", type=positive, default=None, metavar="N", help="the first N problems of each set only")
    made.add_argument("--out", type=Path, default=None, metavar="DIR", help="for answers.jsonl and evaluation.json")
    made.add_argument("--config", default=None, metavar="FILE", help="YAML file (the run's, or the recipe's)")
    made.add_argument("--dry-run", action="store_true", help="say what would be drawn and judged, and stop")
    return made


def evaluate_command(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    asked = evaluation_of(args)
    try:
        if args.dry_run:
            _dry_run(asked)
            return 0
        run_standalone(asked.cfg, asked.work, preparing=asked.prepare, wanted=asked.wanted)
        figures = asked.figures()
        assert asked.out is not None
        target = asked.out / "evaluation.json"
        write_atomic(target, json.dumps(to_json_types(figures), indent=2, ensure_ascii=False) + "\n")
        print_output(report.evaluation_table(figures), f"written to {target}")
    finally:
        if asked.file is not None:
            asked.file.close()
    return 0


def _dry_run(asked: Evaluation) -> None:
    with scratch_directory() as (scratch, _):
        inputs = asked.prepare(scratch, read_only=True)
    prompts = inputs.heldout
    assert asked.file is not None
    undrawn, unjudged = asked.file.missing(prompts, asked.draw.samples)
    left_out = [f"left out  {name}: {line}" for name, intake in asked.splits.items() for line in intake.lines()]
    sets = [f"{name:<14} {len(intake.prompts)} problems" for name, intake in asked.splits.items()]
    print_output(
        *sets, *left_out, f"{undrawn} answers to draw, {unjudged} more to judge; to be kept in {asked.file.path}"
    )
    if "engine" in asked.wanted():
        print_output(*(f"{name:<14} {value}" for name, value in check_engines(inputs)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one evaluation; returns the exit code."""
    args = evaluate_parser().parse(argv)
    return ending_in_order(lambda: evaluate_command(args))


if __name__ == "__main__":
    raise SystemExit(command(main))
