"""Writes down each finished step: a row of metrics, the trace, its groups and samples, a line of progress.

Whatever else shall happen after each step goes into ``Recorder.step``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from overlap.core import ClusterFigures, Scored
from overlap.pipeline.learning import StepResult
from overlap.record.json_lines import json_line
from overlap.record.metrics import episode_row, node_row, step_row, worst_nodes_line
from overlap.record.progress import Progress
from overlap.record.run_files import RunFile
from overlap.record.rundir import RunDir
from overlap.record.sample_writer import SampleWriter
from overlap.record.timing import Row, step_times
from overlap.record.trace import Tracer
from overlap.record.traffic import Traffic


class Recorder:
    """Records the steps of a run, called from the driver's event loop.

    Files are written in a thread, one step at a time; without a file that cannot be written the run goes on
    (``RunDir.failures``).
    """

    def __init__(
        self,
        run: RunDir,
        progress: Progress,
        samples: SampleWriter,
        *,
        earlier: Sequence[Row] = (),
        traced: tuple[int, float] | None = None,
        max_staleness: int = 0,
    ) -> None:
        """``earlier``: rows of the run that is resumed; ``traced``: where its trace ended (``Tracer.position``).
        ``max_staleness``: the oldest age in versions that rows have a share of.
        """
        self.rows: list[Row] = list(earlier)
        self.traffic = Traffic(progress.live)
        self._run, self._progress, self._samples = run, progress, samples
        self._tracer = Tracer(run.trace, after=traced)
        self._began_s = time.monotonic()
        """Start of the step: the end of the last parity check, so that the work after that check, as metrics and a
        checkpoint, is part of a step; or the end of an evaluation, which is not part of a step.
        """
        self._evaluation: tuple[float, float] | None = None
        self._no_ages = {f"rollout/staleness_share_{age}": 0.0 for age in range(max_staleness + 1)}

    @property
    def traced(self) -> tuple[int, float]:
        """Present end of the trace, for a checkpoint."""
        return self._tracer.position

    def begin(self) -> None:
        """The first step starts here."""
        self._began_s = time.monotonic()
        self.traffic.pop_engine_spans()
        self.traffic.pop_nodes()
        self._progress.restart()

    def evaluated(self, began_s: float) -> None:
        """Note that an evaluation has ended, which began at ``began_s`` after a parity check: it is part of no step."""
        self._evaluation = (began_s, time.monotonic())

    async def evaluated_between(self, step: int, began_s: float) -> None:
        """Note that an evaluation has ended, which began at ``began_s`` after everything else of ``step``: it is no
        part of the next one.
        """
        ended_s = time.monotonic()
        self._began_s += ended_s - began_s
        self._tracer.span("evaluate", began_s, ended_s, f"after step {step}")

    async def evaluation(self, step: int, samples: Sequence[Scored]) -> None:
        """Record the samples of the evaluation after ``step``."""
        await asyncio.to_thread(self._samples.evaluation, step, samples)

    async def step(self, result: StepResult, extra: Mapping[str, float] | None = None) -> None:
        """Record one step, with ``extra`` columns in its row."""
        ended_s = result.parity_span[1]
        times = step_times(result, (self._began_s, ended_s), self.traffic.pop_engine_spans())
        self._began_s = self._evaluation[1] if self._evaluation else ended_s
        nodes = self.traffic.pop_nodes()
        beside = node_row(nodes) | episode_row(result, self.traffic.pop_moved()) | dict(extra or {})
        row = step_row(result, times, extra=beside)
        row |= {name: zero for name, zero in self._no_ages.items() if name not in row}
        self.rows.append(row)
        await asyncio.to_thread(self._write, result, row, nodes)
        self._evaluation = None
        self._progress.step(row)

    def close(self) -> None:
        """Flush the trace; safe to call twice."""
        with self._run.failures.tolerate_write_errors(RunFile.TRACE):
            self._tracer.close()

    def _write(self, result: StepResult, row: Row, nodes: ClusterFigures | None) -> None:
        self._run.step(row)
        if nodes is not None:
            self._run.append(RunFile.NODES, [json_line(worst_nodes_line(result.batch.step, nodes))])
        learner = result.report.logprobs if result.report else {}
        self._samples.step(result.batch, learner, result.learn_span[0])
        with self._run.failures.tolerate_write_errors(RunFile.TRACE):
            self._tracer.step(result)
            if self._evaluation is not None:
                self._tracer.span("evaluate", *self._evaluation, f"after step {result.batch.step}")
