"""The timeline of a run: spans of each step in a lane per stage, an arrow along each sample, counters, a line per step.

    generate ──▶ verify ──▶ learn      the arrow of a sample; it ends where the sample does
    counters   samples generating and verifying as they were, tokens/s of a step, leases and waiting steps at its end

Of a long run every step is drawn until the file has ``WINDOW_BYTES``, then every second one until it has twice that,
every fourth one until three times, and so on: it grows by the logarithm of the number of steps, and a run that is
resumed goes on in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from overlap.record.timing import judged, run_span
from overlap.record.trace_file import DrawnSpan, TraceFile

if TYPE_CHECKING:
    from overlap.core import ClusterFigures, Group, Scored, Trajectory
    from overlap.pipeline.learning import StepResult
    from overlap.record.traffic import Level

WINDOW_BYTES = 16 << 20
_SAMPLES_MAX = 1_000_000
"""Samples that a group has at most, for the numbers of flows."""


class Tracer(TraceFile):
    """Draws finished steps."""

    _ended_s: float | None = None
    """Time at which the step before ended."""

    def draws(self, step: int) -> bool:
        """True when the file has room for this step."""
        return step % (1 << self.position[0] // WINDOW_BYTES) == 0

    def step(self, result: StepResult, nodes: ClusterFigures | None = None, levels: Iterable[Level] = ()) -> None:
        """All spans of a finished step: its samples, the learner's step, the weight sync (publish to loaded), and in
        the lane "collect" its groups, from the first verdict to the last. ``nodes`` says how well their clocks are
        known, ``levels`` how many samples were on their way since the step before.
        """
        began_s, self._ended_s = self._ended_s, result.parity_span[1]
        if not self.draws(result.batch.step):
            return
        batch, report = result.batch, result.report
        errors_s = {node.node: node.error_s for node in nodes.nodes} if nodes else {}
        ways = self._samples(batch.all_samples, errors_s)
        for group in sorted((g for g in (*batch.groups, *batch.dropped) if judged(g.samples)), key=_completed_s):
            first_s = min(s.finished_s for s in judged(group.samples))
            args = {"rewards": group.rewards, "dropped": group.dropped}
            self.span("collect", first_s, _completed_s(group), f"group {group.id}", **args)
        if report:
            learned = self.span("learn", *result.learn_span, f"step {batch.step}", groups=len(batch.groups))
            self.span("load", *result.sync_span, f"version {report.version}")
            self.span("load", *result.parity_span, f"parity of version {report.version}", gap=result.parity)
            for scored in batch.samples if learned else ():
                ways[scored.id].append(learned)
        for scored in batch.all_samples:
            number = scored.trajectory.request.group * _SAMPLES_MAX + scored.trajectory.request.sample
            self.flow(number, [span for span in ways[scored.id] if span is not None])
        self._counters(result, began_s, levels)
        self.flush()

    def _samples(self, samples: Sequence[Scored], errors_s: Mapping[str, float]) -> dict[str, list[DrawnSpan | None]]:
        """Draw how each sample was made and judged; returns its spans."""
        ways: dict[str, list[DrawnSpan | None]] = {}
        for scored in sorted(samples, key=lambda s: s.trajectory.finished_s):
            ways[scored.id] = [self._generated(scored.trajectory)]
        for scored in sorted(judged(samples), key=lambda s: s.finished_s):
            ways[scored.id].append(self._verified(scored, errors_s))
        return ways

    def _generated(self, trajectory: Trajectory) -> DrawnSpan | None:
        args: dict[str, Any] = {
            "prompt": trajectory.request.prompt.id,
            "tokens": trajectory.sampled,
            "finish": trajectory.finish,
            "versions": [span.version for span in trajectory.spans],
        }
        if (used := trajectory.used) is not None:
            args |= {"turns": used.turns, "branches": len(trajectory.branches)}
        return self.span("generate", trajectory.started_s, trajectory.finished_s, trajectory.id, **args)

    def _verified(self, scored: Scored, errors_s: Mapping[str, float]) -> DrawnSpan | None:
        args: dict[str, Any] = {
            "reward": scored.reward,
            "verdict": str(scored.judgement.verdict) if scored.judgement else scored.failure,
            "queue_s": scored.started_s - scored.queued_s,
        }
        began_s, ended_s = run_span(scored)
        if scored.judgement and (node := scored.judgement.node):
            args |= {"node": node, "back_s": scored.finished_s - ended_s, "clock_error_s": errors_s.get(node)}
        return self.span("verify", began_s, ended_s, scored.id, **args)

    def _counters(self, result: StepResult, began_s: float | None, levels: Iterable[Level]) -> None:
        ended_s, batch = result.parity_span[1], result.batch
        for level in levels:
            self.counter("samples", level.at_s, generating=level.generating, verifying=level.verifying)
        if began_s is None:
            began_s = min((s.trajectory.started_s for s in batch.all_samples), default=ended_s)
        if batch.groups and ended_s > began_s:  # else it may last a moment
            tokens = sum(s.trajectory.sampled for s in batch.all_samples)
            self.counter("tokens/s", began_s, value=round(tokens / (ended_s - began_s), 1))
        if (loop := result.loop) is not None:
            self.counter("leases", ended_s, out=loop.leases_out, allowed=loop.leases_allowed)
            self.counter("steps waiting", ended_s, value=loop.steps_waiting)
        self.mark(f"step {batch.step}", ended_s)


def _completed_s(group: Group) -> float:
    return max(sample.finished_s for sample in judged(group.samples))
