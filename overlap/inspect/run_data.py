"""``overlap.load_run``: the configuration, metrics, groups, samples, evaluations and summary of a run directory."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from overlap.config.arguments import path_given
from overlap.config.yaml_file import HISTORY
from overlap.core.errors import ConfigError, error_reason
from overlap.record.json_lines import read_json_lines
from overlap.record.ownership import find_run_file, has_owner, stored_summary
from overlap.record.row_shapes import GROUPS, STEPS, SUMMARY, check_form
from overlap.record.run_files import RunFile
from overlap.record.sample_file import SampleFile
from sandbox.core.checks import printable

if TYPE_CHECKING:
    from overlap.evaluation.evaluate import PassRate, ProblemTally

_UNREADABLE = (OSError, ValueError, RecursionError, yaml.YAMLError)


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
        path = RunFile.CONFIG.of(self.path)
        try:
            stored = yaml.safe_load(path.read_text(encoding="utf-8"))
        except _UNREADABLE as error:
            raise _unreadable(path, error) from error
        if not isinstance(stored, dict) or not all(
            isinstance(values, list if section == HISTORY else dict) for section, values in stored.items()
        ):
            raise ConfigError("RUN", str(path), "holds no configuration; name the directory of a run")
        return stored

    @cached_property
    def steps(self) -> list[dict[str, Any]]:
        """The rows of ``metrics.jsonl``, one for each step; NaN where a figure could not be measured."""
        from overlap.record.metrics import read_steps  # with all that makes the rows

        path = RunFile.METRICS.of(self.path)
        try:
            rows = read_steps(path) if self._known_steps is None else self._known_steps
            check_form(STEPS, rows)
        except _UNREADABLE as error:
            raise _unreadable(path, error) from error
        return [{name: math.nan if value is None else value for name, value in row.items()} for row in rows]

    @cached_property
    def groups(self) -> list[dict[str, Any]]:
        """The rows of ``groups.jsonl``: one for each group of each step, and for each problem of each evaluation."""
        path = RunFile.GROUPS.of(self.path)
        try:
            rows = read_json_lines(path)
            check_form(GROUPS, rows)
            return rows
        except _UNREADABLE as error:
            raise _unreadable(path, error) from error

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """``summary.json``; None of a run that has not ended in order, or has been resumed since."""
        try:
            found: dict[str, Any] | None = stored_summary(self.path)
            if found is not None:
                check_form(SUMMARY, found)
            return found
        except _UNREADABLE as error:
            raise _unreadable(RunFile.SUMMARY.of(self.path), error) from error

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
        binary = rewards_are_passes(rows)
        found: dict[int, list[ProblemTally]] = {}
        for row in rows:
            found.setdefault(row["step"], []).append(_tally(row, binary))
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
        """The metrics of all steps as a pandas DataFrame indexed by step, the rewards first, or ``steps`` where
        pandas is missing.
        """
        try:
            from pandas import DataFrame
        except ImportError:
            return self.steps
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


def _rewards(row: Mapping[str, Any]) -> float:
    """The sum of the rewards of a group's judged samples."""
    return float((row["reward"] or 0.0) * (row["samples"] - row["failed"]))


def rewards_are_passes(rows: Iterable[Mapping[str, Any]]) -> bool:
    """True when the mean rewards of these groups are their pass rates: in one evaluation alone that may be chance."""
    return all(math.isclose(_rewards(row), row["solved"], abs_tol=1e-6) for row in rows)


def _tally(row: Mapping[str, Any], binary: bool) -> ProblemTally:
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
        None if binary else _rewards(row),
    )


def _shown(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.3f}"


def _unreadable(path: Path, error: Exception) -> ConfigError:
    return ConfigError("RUN", str(path), f"cannot be read ({error_reason(error)}); mend it or name another run")
