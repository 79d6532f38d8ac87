"""``scripts/prepare_deepcoder.sh``: which problems of public sets are trained on, by DeepCoder's filters.

    rows ──▶ usable? ──▶ 5 tests? ──▶ not there before? ──▶ in no evaluation set? ──▶ reference passes? ──▶ split file

The output names the problems and copies none: a split file for ``data.train``, with a reason in the row of each
problem that is left out, and beside it the counts. Verdicts on references are kept as they come (as ``overlap
check-data`` keeps them), so that the same command, stopped, goes on where it was.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from overlap.cli import command, ending_in_order, print_output
from overlap.commands.check_data import SandboxComponent
from overlap.commands.parsers import positive
from overlap.commands.train import ANY_CORES
from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.core import LeftOut, Probe, Prompt
from overlap.core.errors import ConfigError
from overlap.evaluation.data_check import FAILED, check_problems, open_pool
from overlap.pipeline.dataset_filter import PromptSplit
from overlap.process.atomic import is_stdout, write_atomic
from overlap.process.interrupts import handle_interrupts
from overlap.process.scratch import run_to_end, scratch_directory
from overlap.record.logs import Console, quiet
from overlap.record.out_file import OutFile
from overlap.rows.row import own_split
from overlap.rows.sources import source_rows
from overlap.run.open_close import open_components
from overlap.task import Task
from recipes.code_rl.cases import Judging
from recipes.code_rl.command_line import Parser
from recipes.code_rl.core import CodeProblem
from recipes.code_rl.data import load_problems, long_integers, read_problems
from recipes.code_rl.evaluation_sets import KNOWN, check_source
from recipes.code_rl.kept_verdicts import digest_of, keep_verdicts, kept_verdicts, known_verdicts
from recipes.code_rl.probes import probes
from recipes.code_rl.statements import Statements, words_of
from recipes.code_rl.task import CodeTask
from sandbox.core.nouns import Verdict
from sandbox.rewards.calls import CONTEST_MODULES

if TYPE_CHECKING:
    from sandbox.pool.pool import Pool

CONFIG: Final = Path(__file__).parent / "configs" / "deepcoder_14b_16k.yaml"
AGAINST: Final = ("lcbv5", "codeforces", "humaneval+", "mbpp+")
"""Evaluation sets that no problem may be trained on: DeepCoder's two, and the two others that are reported."""
FEWEST_TESTS: Final = 5
PART: Final = 256
"""Problems whose references are judged together."""

FEW_TESTS = "too few tests"
TWICE = "statement used twice"
HELD_OUT = "held out by its own split"
EVALUATED = "in an evaluation set"
REJECTED = "reference rejected"
UNJUDGED = "reference could not be judged"
MARK = '"split": '


@dataclass(frozen=True, slots=True)
class Filters:
    """Conditions that a problem must meet to be trained on."""

    evaluated: Statements
    fewest_tests: int = FEWEST_TESTS
    references: bool = True
    """Have each problem's own reference judged; one without a reference is kept."""


@dataclass
class FilterOutcome:
    """Outcome of all rows of the sources."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the split file."""
    left_out: list[LeftOut] = field(default_factory=list)
    unreferenced: int = 0
    """Kept problems without a reference."""
    judged: int = 0
    known: int = 0
    """References that were judged before."""

    @property
    def kept(self) -> int:
        return sum(row["split"] == "train" for row in self.rows)

    @property
    def _split(self) -> PromptSplit:
        return PromptSplit(left_out=tuple(self.left_out))

    def keep(self, source: str, problem: CodeProblem) -> None:
        self.unreferenced += not problem.references
        self.rows.append({"id": problem.id, "split": "train", "source": source})

    def drop(self, source: str, problem: CodeProblem, reason: str, detail: str = "") -> None:
        self.left_out.append(LeftOut(problem.place or problem.id, reason, detail))
        self.rows.append({"id": problem.id, "split": "dropped", "source": source, "reason": reason})

    def lines(self) -> list[str]:
        """Return lines for the user: counts by reason, each with its first row."""
        total = self.kept + len(self.left_out)
        lines = [f"{total} rows, {self.kept} problems to train on; {self.unreferenced} of them bring no reference"]
        lines += [f"  {line}" for line in self._split.lines()]
        return [*lines, f"{self.judged} references judged, {self.known} more were judged before"]

    def to_json(self) -> dict[str, Any]:
        reasons = self._split.to_json()["left_out"]
        kept = Counter(row["source"] for row in self.rows if row["split"] == "train")
        return {"kept": self.kept, "by_source": dict(kept), "unreferenced": self.unreferenced, "left_out": reasons}


class References(Task):
    """A task whose only probes are the problems' own references."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self.packages = packages

    def prompts(self, tokenizer: Any, split: str) -> list[Prompt]:
        return []

    def reward(self, prompt: Prompt, answer: str, judgement: Any) -> float:
        raise AssertionError("nothing is answered")

    def probes(self, prompt: Prompt) -> Iterator[Probe]:
        return itertools.takewhile(lambda probe: probe.kind == "reference", probes(prompt.data))


def _next(found: Iterator[CodeProblem | LeftOut]) -> CodeProblem | LeftOut | None:
    """The limit of digits is lifted for the reading alone: a caller may leave its generator at any yield."""
    with long_integers():
        return next(found, None)


def candidates(
    sources: Sequence[str], judging: Judging, filters: Filters, outcome: FilterOutcome
) -> Iterator[tuple[str, CodeProblem]]:
    """(source, problem) of each row that no filter but that of the reference leaves out. Raises ConfigError."""
    seen: dict[tuple[str, ...], str] = {}
    for source in sources:
        found = read_problems(source_rows(source, "SOURCE"), judging)
        while (problem := _next(found)) is not None:
            if isinstance(problem, LeftOut):
                outcome.left_out.append(problem)
                continue
            words, place = words_of(problem.statement), problem.place or problem.id
            tests = len(problem.problem.cases)
            if problem.problem.kind != "assert" and tests < filters.fewest_tests:
                outcome.drop(source, problem, FEW_TESTS, f"{tests} of {filters.fewest_tests}")
            elif own_split(problem.split, place, "SOURCE") == "heldout":
                outcome.drop(source, problem, HELD_OUT)
            elif (first := seen.setdefault(words, place)) != place:
                outcome.drop(source, problem, TWICE, f"as {first}")
            elif same := filters.evaluated.same(problem.statement):
                outcome.drop(source, problem, EVALUATED, f"as {same}")
            else:
                yield source, problem


@dataclass
class Preparation:
    """A requested choice of data: the data to choose from, and where the choice is written."""

    cfg: Config
    sources: tuple[str, ...]
    against: tuple[str, ...]
    fewest_tests: int
    references: bool
    out: Path
    outcome: FilterOutcome = field(default_factory=FilterOutcome)

    @property
    def counts(self) -> Path:
        """Beside the split file: how many problems were kept and left out, by reason."""
        return self.out.with_suffix(".counts.json")

    def run(self) -> str:
        """Choose and write; returns where. Raises ConfigError, OverlapError; what was judged until then is known to the
        next run.
        """
        out = OutFile(self.out, ours=MARK)
        if self.out.suffix != ".jsonl" and not out.is_stream:
            raise ConfigError("--out", str(self.out), "a split file is called NAME.jsonl")
        with (
            handle_interrupts() as interrupts,
            scratch_directory() as (scratch, reaper),
            quiet(scratch / "log") as console,
        ):
            evaluated = Statements(self._evaluated(console))
            filters = Filters(evaluated, self.fewest_tests, self.references)

            async def work() -> None:
                judging = replace(Judging.from_config(self.cfg, CodeTask), tests_per_problem=0)
                task = References((*judging.packages, *CONTEST_MODULES))
                pool = open_pool(self.cfg, task, scratch)
                async with AsyncExitStack() as stack:
                    if self.references:
                        await open_components({"sandbox": SandboxComponent(pool)}, stack, reaper, console.print)
                    await self._choose(pool, task, judging, filters, console)

            run_to_end(work, interrupts)
        rows = ({**row, "source": _named(row["source"], out.folder)} for row in self.outcome.rows)
        out.write("".join(json.dumps(row) + "\n" for row in rows))
        if out.is_stream:
            return f"written to {out}"
        write_atomic(self.counts, json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n")
        return f"written to {out} and {self.counts}"

    def to_json(self) -> dict[str, Any]:
        asked = {"sources": list(self.sources), "against": list(self.against), "fewest_tests": self.fewest_tests}
        return asked | {"references_judged": self.references, **self.outcome.to_json()}

    def _evaluated(self, console: Console) -> Iterator[tuple[str, str]]:
        """(place, statement) of all problems that are evaluated on."""
        for name in self.against:
            if name not in KNOWN:
                check_source("--against", name, tuple(KNOWN))
            source = KNOWN[name].source if name in KNOWN else name
            found = load_problems(source, Judging(1, packages=("numpy",)), "--against")
            console.print(f"{len(found.problems)} problems of {name} are not trained on")
            yield from ((problem.place or problem.id, problem.statement) for problem in found.problems)

    async def _choose(self, pool: Pool, task: References, judging: Judging, filters: Filters, console: Console) -> None:
        outcome, known = self.outcome, known_verdicts(kept_verdicts())
        found = candidates(self.sources, judging, filters, outcome)
        for part in iter(lambda: list(itertools.islice(found, PART)), []):
            verdicts = await self._verdicts(pool, task, [problem for _, problem in part], known)
            for (source, problem), (verdict, message) in zip(part, verdicts, strict=True):
                if verdict in ("", Verdict.AC):
                    outcome.keep(source, problem)
                else:
                    outcome.drop(source, problem, UNJUDGED if verdict == FAILED else REJECTED, f"{verdict} {message}")
            console.print(f"{outcome.kept + len(outcome.left_out)} rows, {outcome.kept} kept")

    async def _verdicts(
        self, pool: Pool, task: References, problems: Sequence[CodeProblem], known: dict[str, str]
    ) -> list[tuple[str, str]]:
        """(verdict, message) on the reference of each problem; "" where it has none, or none is judged."""
        if not self.references:
            return [("", "")] * len(problems)
        prompts = [Prompt(problem.id, (), data=problem, place=problem.place) for problem in problems]
        digests = [next((digest_of(probe, task.packages) for probe in task.probes(p)), "") for p in prompts]
        asked = {d: p for p, d in zip(prompts, digests, strict=True) if d and d not in known}
        report = await check_problems(pool.judge, task, list(asked.values()))
        found = {d: (f.reference, f.message or f.fault) for d, f in zip(asked, report.findings, strict=True)}
        self.outcome.judged += len(asked)
        self.outcome.known += sum(digest in known for digest in digests)
        known.update({digest: verdict for digest, (verdict, _) in found.items() if verdict != FAILED})
        keep_verdicts(kept_verdicts(), known)
        return [found.get(digest) or (known.get(digest, ""), "") for digest in digests]


def _named(source: str, folder: Path) -> str:
    """A source as a split file in ``folder`` names it: a file, from there."""
    path = Path(source).expanduser()
    return os.path.relpath(path.resolve(), folder) if path.exists() else source


def prepare_parser() -> Parser:
    text = "Choose what is trained on: problems with tests and a right reference, each once, none of an evaluation set."
    made = Parser(prog="prepare_deepcoder.sh", description=text)
    made.add_argument("sources", nargs="*", metavar="SOURCE", help="as data.train takes them (DeepCoder's three sets)")
    made.add_argument("--out", type=Path, required=True, metavar="FILE.jsonl", help="split file to write")
    text = f"evaluation sets, by name or source; may be given again ({', '.join(AGAINST)})"
    made.add_argument("--against", action="append", metavar="SET", help=text)
    text = f"fewest tests of a problem ({FEWEST_TESTS})"
    made.add_argument("--min-tests", type=positive, default=FEWEST_TESTS, metavar="N", help=text)
    made.add_argument("--no-judging", action="store_true", help="believe the references, and start no sandbox")
    made.add_argument("--config", default=str(CONFIG), metavar="FILE", help="YAML file (deepcoder_14b_16k)")
    return made


def preparation_of(args: argparse.Namespace) -> Preparation:
    """Return the preparation that the command line requests. Raises ConfigError."""
    # References are judged on all cores; a configuration for a large machine is read on a small one all the same.
    cfg = load_config(args.config, [*ANY_CORES, *args.overrides])
    sources = tuple(args.sources) or (cfg.data.train,)
    if not all(sources):
        raise ConfigError("SOURCE", "", "name a file or hub id, for data.train of this configuration is empty")
    against = AGAINST if args.against is None else tuple(name for name in args.against if name != "none")
    return Preparation(cfg, sources, against, args.min_tests, not args.no_judging, args.out)


def prepare_data(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    asked = preparation_of(args)
    written = asked.run()
    print_output(*asked.outcome.lines(), written, beside=is_stdout(asked.out))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Prepare the data; returns the exit code."""
    args = prepare_parser().parse(argv)
    return ending_in_order(lambda: prepare_data(args))


if __name__ == "__main__":
    raise SystemExit(command(main))
