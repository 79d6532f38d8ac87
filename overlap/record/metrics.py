"""The row of a step in ``metrics.jsonl``.

A metric is a name in the row that a function with ``@measure`` returns, and its line in ``docs/metrics.md``. What no
StepResult tells has a function of its own: ``node_row``, ``episode_row``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlap.core import equal_rewards, reaches
from overlap.pipeline.assemble import DROP_REASONS
from overlap.record.json_lines import read_json_lines
from overlap.record.timing import NAN, Row, judged, mean, quantile, run_span
from sandbox.core.nouns import Verdict

if TYPE_CHECKING:
    from overlap.core import ClusterFigures, Group, NodeFigures, Scored
    from overlap.pipeline.learning import StepResult

WORST = 8
"""Nodes that a step names."""
Measure = Callable[["StepResult"], Row]
MEASURES: list[Measure] = []


def measure(function: Measure) -> Measure:
    """Put what ``function`` finds in a finished step into every row; names are prefixed, as in "reward/mean"."""
    MEASURES.append(function)
    return function


def step_row(result: StepResult, times: Row, *, extra: Mapping[str, float] | None = None) -> Row:
    """The flat row of a step for ``metrics.jsonl``: step, version, all measures, time/.

    Rewards, lengths and verdicts are over all samples of the step, those of dropped groups included: leaving those out
    would bias the curve, because groups are dropped by their reward. ``extra`` overrides and must be prefixed already.
    """
    batch, report = result.batch, result.report
    row: Row = {"step": batch.step, "version": report.version if report else batch.version}
    for found in (function(result) for function in MEASURES):
        row |= found
    return row | {f"time/{name}": value for name, value in times.items()} | dict(extra or {})


@measure
def learn_row(result: StepResult) -> Row:
    """``learn/``: the learner's report of its step; ``rollout/parity_gap``: engine against learner after the sync, NaN
    where nothing was learned.
    """
    learned = result.report.metrics if result.report else {}
    row = {name if "/" in name else f"learn/{name}": float(value) for name, value in learned.items()}
    return row | {"rollout/parity_gap": result.parity if result.report else NAN}


@measure
def loop_row(result: StepResult) -> Row:
    """``loop/``: how full the pipeline is after the step, and how long its parts have waited so far, s;
    ``memory/<moment>_free_gib``, where engine and learner share a device.
    """
    state = asdict(result.loop) if result.loop else {}
    row = {f"loop/{name}": float(value) for name, value in state.items()}
    return row | {f"memory/{moment}_free_gib": gib for moment, gib in result.free.items()}


@measure
def reward_row(result: StepResult) -> Row:
    """``reward/``: mean, std, solved_share (of scored samples), masked (unscored); of groups, the shares in which any,
    all, none or some of the scored samples are solved, and of those with equal rewards. A group without a scored sample
    is in none of these shares.
    """
    batch = result.batch
    groups = (*batch.groups, *batch.dropped)
    samples = batch.all_samples
    rewards = [s.reward for s in samples if s.reward is not None]
    centre = mean(rewards)
    return {
        "reward/mean": centre,
        "reward/std": math.sqrt(mean((r - centre) ** 2 for r in rewards)) if rewards else NAN,
        "reward/solved_share": mean(float(solved(s)) for s in samples if s.reward is not None),
        **_solved_shares(groups),
        "reward/zero_std_share": mean(float(bool(g.rewards) and equal_rewards(g.rewards)) for g in groups),
        "reward/masked": sum(s.reward is None for s in samples),
    }


def _solved_shares(groups: Sequence[Group]) -> Row:
    shares = [mean(float(solved(s)) for s in g.samples if s.reward is not None) for g in groups]  # NaN without any
    return {
        "reward/any_solved_share": mean(float(share > 0) for share in shares),
        "reward/all_solved_share": mean(float(share == 1) for share in shares),
        "reward/none_solved_share": mean(float(share == 0) for share in shares),
        "reward/mixed_share": mean(float(0 < share < 1) for share in shares),
    }


@measure
def punishment_row(result: StepResult) -> Row:
    """``reward/overlong_mean``, ``reward/overlong_share``: where long responses are punished."""
    groups = (*result.batch.groups, *result.batch.dropped)
    pairs = [pair for g in groups if g.punishments for pair in zip(g.samples, g.punishments, strict=True)]
    punished = [punishment for sample, punishment in pairs if sample.reward is not None]
    if not punished:
        return {}
    return {"reward/overlong_mean": mean(punished), "reward/overlong_share": mean(float(p < 0) for p in punished)}


def solved(sample: Scored) -> bool:
    """All tests passed (verdict AC); without a judgement: a reward of at least 1."""
    if sample.reward is None:
        return False
    return sample.judgement.verdict == "AC" if sample.judgement else reaches(sample.reward, 1.0)


@measure
def rollout_row(result: StepResult) -> Row:
    """``rollout/``: samples, tokens, lengths, truncated_share, partial_share, groups kept and dropped by reason; ages
    of the samples learned from, and their shares by age, from 0 to that of the oldest.
    """
    batch = result.batch
    samples = batch.all_samples
    lengths = [s.trajectory.sampled for s in samples]
    ages = batch.staleness
    by_age = Counter(ages)
    row: Row = {
        "rollout/samples": len(samples),
        "rollout/tokens": sum(lengths),
        "rollout/length_mean": mean(lengths),
        "rollout/length_max": max(lengths, default=0),
        "rollout/truncated_share": mean(float(s.trajectory.truncated) for s in samples),
        "rollout/partial_share": mean(float(len({p.version for p in s.trajectory.spans}) > 1) for s in samples),
        "rollout/groups_kept": len(batch.groups),
        "rollout/groups_dropped": len(batch.dropped),
        "rollout/staleness_mean": mean(ages) if ages else 0.0,
        "rollout/staleness_max": max(ages, default=0),
    }
    row |= {f"rollout/staleness_share_{age}": by_age[age] / len(ages) for age in range(max(ages, default=-1) + 1)}
    reasons = Counter(slug(g.dropped) for g in batch.dropped)
    return row | {f"rollout/dropped_{reason}": reasons[reason] for reason in sorted({*DROP_REASONS, *reasons})}


@measure
def verify_row(result: StepResult) -> Row:
    """``verify/``: samples by verdict, failures of ours, seconds in the queue and in the sandbox per sample, and on the
    way back from another machine's.
    """
    samples = result.batch.all_samples
    verdicts = Counter(s.judgement.verdict for s in samples if s.judgement)
    ended = judged(samples)
    run = [end - start for start, end in map(run_span, ended)]
    back = [s.finished_s - run_span(s)[1] for s in ended if s.judgement and s.judgement.node]
    figures = {f"verify/{verdict}": verdicts[verdict] for verdict in Verdict} | {
        "verify/failed": sum(bool(s.failure) for s in samples),
        "verify/queue_s_mean": mean(s.started_s - s.queued_s for s in ended),
        "verify/run_s_p50": quantile(run, 0.5),
        "verify/run_s_p99": quantile(run, 0.99),
        "verify/run_s_max": max(run, default=NAN),
    }
    return figures | ({"verify/back_s_mean": mean(back)} if back else {})


def episode_row(result: StepResult, moved: int) -> Row:
    """``episode/``: turns, branches, tokens sampled and trained, cache hits, ``moved`` episodes, and those out of time;
    nothing where rollouts have one turn.
    """
    known = [(s.trajectory, s.trajectory.used) for s in result.batch.all_samples]
    episodes = [(trajectory, used) for trajectory, used in known if used is not None]
    if not episodes:
        return {}
    sampled = sum(used.sampled for _, used in episodes)
    prompted = sum(used.prompted for _, used in episodes)
    later = sum(max(0, used.turns - 1) for _, used in episodes)
    forks = sum(len(trajectory.forks) for trajectory, _ in episodes)
    return {
        "episode/turns_mean": mean(used.turns for _, used in episodes),
        "episode/turns_max": max(used.turns for _, used in episodes),
        "episode/branches_mean": mean(len(trajectory.branches) for trajectory, _ in episodes),
        "episode/fork_rate": forks / later if later else 0.0,
        "episode/tokens_sampled": sampled,
        "episode/trained_share": sum(t.sampled for t, _ in episodes) / sampled if sampled else NAN,
        "episode/cached_share": sum(used.cached for _, used in episodes) / prompted if prompted else NAN,
        "episode/replayed": sum(used.replayed for _, used in episodes),
        "episode/moved": moved,
        "episode/unread": sum(used.unread for _, used in episodes),
        "episode/out_of_time": sum(used.out_of_time for _, used in episodes),
        "episode/rerendered_tokens": sum(used.rerendered for _, used in episodes),
        "episode/refused": sum(sum(used.refused.values()) for _, used in episodes),
        **{f"episode/refused_{name}": count for name, count in _summed(used.refused for _, used in episodes)},
        **{f"episode/ignored_{name}": count for name, count in _summed(used.ignored for _, used in episodes)},
    }


def _summed(counts: Iterable[Mapping[str, int]]) -> Iterable[tuple[str, int]]:
    return sum(map(Counter, counts), Counter[str]()).items()


def node_row(figures: ClusterFigures | None) -> dict[str, float]:
    """``nodes/``: of all nodes together, the least busy one, the worst known clock. Nothing without a cluster."""
    if figures is None:
        return {}
    there = [node for node in figures.nodes if node.workers]
    workers, run_s = sum(node.workers for node in there), sum(node.run_s for node in figures.nodes)
    shares = [node.busy_share(figures.seconds) for node in there]
    return {
        "nodes/count": len(there),
        "nodes/workers": workers,
        "nodes/judged": sum(node.judged for node in figures.nodes),
        "nodes/run_s": run_s,
        "nodes/lost": sum(node.lost for node in figures.nodes),
        "nodes/busy_share": run_s / (workers * figures.seconds) if workers and figures.seconds > 0 else 0.0,
        "nodes/busy_share_min": min(shares, default=0.0),
        "nodes/clock_error_s_max": max((node.error_s for node in there), default=0.0),
    }


def worst_nodes_line(step: int, figures: ClusterFigures) -> dict[str, Any]:
    """The line of a step: the nodes that lost most, then the nodes that were least busy."""

    def rank(node: NodeFigures) -> tuple[int, float, str]:
        return -node.lost, node.busy_share(figures.seconds), node.node

    worst = sorted(figures.nodes, key=rank)[:WORST]
    rows = [{**node._asdict(), "busy_share": node.busy_share(figures.seconds)} for node in worst]
    return {"step": step, "seconds": figures.seconds, "nodes": len(figures.nodes), "worst": rows}


def read_steps(path: Path, *, size: int | None = None) -> list[dict[str, Any]]:
    """The rows of the steps in the first ``size`` bytes of a ``metrics.jsonl``. Raises OSError, ValueError."""
    return list(filter(_is_step, read_json_lines(path, size=size)))


def _is_step(row: Mapping[str, Any]) -> bool:
    """True for a step: rows of evaluations before the first step and after the last have columns of these alone."""
    others = [name for name in row if name != "step"]
    return not others or not all(name.startswith("eval/") for name in others)


def slug(reason: str) -> str:
    """A reason as part of a metric's name."""
    return "_".join("".join(c if c.isalnum() else " " for c in reason.lower()).split()) or "other"
