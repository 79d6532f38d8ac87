"""``overlap.load_run``: the configuration, metrics, groups, samples, evaluations and summary of a run directory."""

from __future__ import annotations

import html
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import TypeAdapter

from overlap.config.load import HISTORY
from overlap.config.rules import path_given
from overlap.core import reaches
from overlap.core.errors import ConfigError, refusing
from overlap.inspect.sample_reason import ACCEPTED
from overlap.record.json_lines import read_json_lines
from overlap.record.ownership import find_run_file, has_owner, stored_summary
from overlap.record.row_shapes import GROUPS, STEPS, SummaryFile, check_form
from overlap.record.run_files import RunFile
from overlap.record.sample_file import GroupKey, SampleFile, group_key
from sandbox.core.checks import printable

if TYPE_CHECKING:
    from overlap.evaluation.evaluate import PassRate, ProblemTally

OPTIONAL_SUMMARY = TypeAdapter(SummaryFile | None)


@dataclass(frozen=True, slots=True)
class EvaluationPoint:
    """An evaluation on the held-out problems: the step after which it was made (0: before the first), and what was
    found, by problem in ``rate.tallies``.
    """

    step: int
    rate: PassRate


def load_run(run: str | Path) -> RunData:
    """Open the run directory ``run``, of a run that has ended or goes on. Raises ConfigError where it holds none."""
    name = str(path_given("run", run, "runs/first"))
    way_out = "name the directory of a run, for instance runs/latest"
    return RunData(find_run_file(name, RunFile.CONFIG, field="RUN", way_out=way_out).parent)


def open_samples(run: str) -> RunData:
    """The run in directory ``run``, or the answers in file ``run``. Raises ConfigError where there is neither."""
    path = path_given("RUN", run, "runs/first")
    if os.path.isfile(path):  # False for a name that no file system takes
        folder = path.parent
        inside = path.name == RunFile.TRAJECTORIES.filename and RunFile.CONFIG.of(folder).exists()
        return load_run(folder) if inside else AnswersFile(path)
    return load_run(run)


class RunData:
    """The data of a run's directory. Each part is read at its first use; call ``load_run`` again to see later data."""

    def __init__(self, path: Path, steps: Sequence[Mapping[str, Any]] | None = None) -> None:
        """``steps``: its rows of metrics, where they are known, because the disk may not have them all."""
        self.path = path
        self._known_steps = steps
        self.samples = SampleFile(RunFile.TRAJECTORIES.of(path))
        """The samples that were kept (``run.samples``)."""

    def again(self) -> RunData:
        """The same run as its files are now; samples that have been read are not read again."""
        made = type(self)(self.path)
        made.samples = self.samples
        return made

    @cached_property
    def config(self) -> dict[str, dict[str, Any]]:
        """The whole configuration as it was stored, by section."""
        return {section: values for section, values in self._stored.items() if section != HISTORY}

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """Times at which the run was started and resumed, and the changes of each."""
        return [entry for entry in self._stored.get(HISTORY) or () if isinstance(entry, dict)]

    @cached_property
    def _stored(self) -> dict[str, Any]:
        stored = self._read(RunFile.CONFIG, lambda path: yaml.safe_load(path.read_text(encoding="utf-8")))
        if not isinstance(stored, dict) or not all(
            isinstance(values, list if section == HISTORY else dict) for section, values in stored.items()
        ):
            path = RunFile.CONFIG.of(self.path)
            raise ConfigError("RUN", str(path), "holds no configuration; name the directory of a run")
        return stored

    @cached_property
    def steps(self) -> list[dict[str, Any]]:
        """The rows of ``metrics.jsonl``, one for each step; NaN where a figure could not be measured."""
        from overlap.record.metrics import read_steps  # with all that makes the rows

        known = self._known_steps
        rows = self._read(RunFile.METRICS, lambda path: read_steps(path) if known is None else known, STEPS)
        return [{name: math.nan if value is None else value for name, value in row.items()} for row in rows]

    @cached_property
    def groups(self) -> list[dict[str, Any]]:
        """The rows of ``groups.jsonl``: one for each group of each step, and for each problem of each evaluation."""
        rows: list[dict[str, Any]] = self._read(RunFile.GROUPS, read_json_lines, GROUPS)
        return rows

    @cached_property
    def group_rows(self) -> list[dict[str, Any]]:
        """The rows of ``groups.jsonl``; of a run that has none, what its kept samples say."""
        found: dict[GroupKey, list[dict[str, Any]]] = {}
        for _, _, head in self.samples.heads() if not self.groups else ():
            found.setdefault(group_key(head), []).append(head)
        return self.groups or [_group_row(samples) for samples in found.values()]

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """``summary.json``; None of a run that has not ended in order, or has been resumed since."""
        found: dict[str, Any] | None = self._read(
            RunFile.SUMMARY, lambda _: stored_summary(self.path), OPTIONAL_SUMMARY
        )
        return found

    def _read(self, file: RunFile, read: Callable[[Path], Any], form: TypeAdapter[Any] | None = None) -> Any:
        """The content of a file. Raises ConfigError where it cannot be read, or is not of this ``form``."""
        path = file.of(self.path)
        unreadable = (OSError, ValueError, RecursionError, yaml.YAMLError)
        with refusing("RUN", str(path), "cannot be read", "mend it or name another run", unreadable):
            found = read(path)
            if form is not None:
                check_form(form, found)
        return found

    @property
    def live(self) -> bool:
        """True when the run goes on; False where its lock cannot be read."""
        with suppress(OSError):
            return has_owner(self.path)
        return False

    @property
    def state(self) -> str:
        """End of the run, as in ``summary.json``, or that it goes on."""
        return str(self.summary["exit"]) if self.summary else "goes on" if self.live else "did not end in order"

    @cached_property
    def evaluations(self) -> list[EvaluationPoint]:
        """The evaluations, in order of their steps."""
        from overlap.evaluation.evaluate import PassRate  # a third of the time that a command takes to start

        rows = [row for row in self.groups if row["split"] == "heldout"]
        sums = [(row["reward"] or 0.0) * (row["samples"] - row["failed"]) for row in rows]
        # Are the rewards passes? In one evaluation alone it may be chance that they are equal.
        binary = all(math.isclose(total, row["solved"], abs_tol=1e-6) for total, row in zip(sums, rows, strict=True))
        found: dict[int, list[ProblemTally]] = {}
        for row, total in zip(rows, sums, strict=True):
            found.setdefault(row["step"], []).append(_tally(row, None if binary else total))
        k = self.config.get("run", {}).get("eval_samples") or 1
        temperature = self.config.get("rollout", {}).get("temperature")
        return [EvaluationPoint(step, PassRate(tuple(tallies), k, temperature)) for step, tallies in found.items()]

    def column(self, name: str) -> list[float]:
        """One figure over the steps; NaN where a row lacks it."""
        values = [row.get(name) for row in self.steps]
        return [float(value) if isinstance(value, int | float) else math.nan for value in values]

    def known(self, name: str) -> list[float]:
        """One figure of the steps that have it."""
        return [value for value in self.column(name) if math.isfinite(value)]

    def total(self, name: str) -> float:
        """Sum of a figure over the steps that have it."""
        return math.fsum(self.known(name))

    def table(self) -> Any:
        """The metrics of all steps as a pandas DataFrame indexed by step, the rewards first."""
        from pandas import DataFrame

        if not self.steps:
            return DataFrame()
        table = DataFrame(self.steps).set_index("step")
        return table[sorted(table.columns, key=lambda name: not name.startswith("reward/"))]

    def __repr__(self) -> str:
        return f"RunData({str(self.path)!r}: {', '.join(f'{name} {value}' for name, value in self._facts())})"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{html.escape(n)}</th><td>{html.escape(v)}</td></tr>" for n, v in self._facts())
        return f"<table><caption>{html.escape(printable(str(self.path)))}</caption>{rows}</table>"

    def _facts(self) -> list[tuple[str, str]]:
        """Names and values of the run's main figures."""
        steps = self.steps
        facts = [("steps", f"{len(steps)} ({self.state})")]
        if steps:
            first, last = (_shown(steps[at].get("reward/mean")) for at in (0, -1))
            facts.append(("reward", f"{first} -> {last}"))
        told = self.evaluations[:1] + self.evaluations[1:][-1:]
        facts += [(f"{point.rate.measure} after step {point.step}", str(point.rate.estimate)) for point in told]
        facts += [("warning", text) for text in (self.summary or {}).get("warnings") or ()]
        return [(name, printable(value)) for name, value in facts]


class AnswersFile(RunData):
    """A file of ``overlap rollout --out``, without a run around it: it has samples alone."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, ())
        self.samples = SampleFile(file)
        self._stored, self.groups, self.summary = {}, [], None

    @property
    def state(self) -> str:
        return "a file of answers"


def _group_row(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """A row as in ``groups.jsonl``, of the samples of a group."""
    first = samples[0]
    rewards = [s["reward"] for s in samples if s["reward"] is not None]
    passes = [s["verdict"] == ACCEPTED if s["verdict"] else reaches(s["reward"] or 0.0, 1.0) for s in samples]
    return {
        **{name: first[name] for name in ("split", "step", "group", "prompt_id", "dropped")},
        **{name: sum(s[name] for s in samples) for name in ("truncated", "tokens", "weak")},
        "samples": len(samples),
        "solved": sum(passes),
        "failed": len(samples) - len(rewards),
        "reward": sum(rewards) / len(rewards) if rewards else None,
        "reward_std": None,
        "verdicts": dict(Counter(s["verdict"] for s in samples if s["verdict"])),
        "programs": len({s["program_sha256"] for s in samples if s["program_sha256"]}),
        "learned": first["split"] == "train" and not first["dropped"],
    }


def _tally(row: Mapping[str, Any], rewards: float | None) -> ProblemTally:
    """Tokens and truncated samples of a row are of all samples, those of a tally of the judged ones: their share."""
    from overlap.evaluation.evaluate import ProblemTally

    judged = row["samples"] - row["failed"]
    share = judged / row["samples"] if row["samples"] else 0.0
    return ProblemTally(
        row["prompt_id"],
        row["solved"],
        judged,
        row["failed"],
        round(row["truncated"] * share),
        round(row["tokens"] * share),
        rewards,
    )


def _shown(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.3f}"
