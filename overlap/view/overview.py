"""What a run has: steps, verdicts, kept groups, and the groups of its newest step as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from overlap.analysis.run_data import RunData, rewards_are_passes
from overlap.analysis.sample_file import GroupKey, group_key
from overlap.analysis.sample_reason import dropped_words
from overlap.errors import count_of
from overlap.view.source import group_rows, rewards_by_step, taught
from overlap.view.terminal import Screen, figure, one_line_of

GROUPS = 24
"""Groups of the newest step that the overview shows."""


def overview(run: RunData, name: str, screen: Screen) -> Iterator[str]:
    """The lines of ``overlap show RUN``."""
    heads = [head.values for head in run.samples.heads()]
    rows = group_rows(run)
    yield screen.title(screen.cut(name))
    if not rows:
        yield "no step has ended yet" if run.live else "no samples are kept here"
        return
    yield from _facts(run, rows, heads, screen)
    yield ""
    last = next((row for row in reversed(rows) if row["split"] == "train"), rows[-1])
    newest = [row for row in rows if row["step"] == last["step"] and row["split"] == last["split"]]
    yield screen.title(f"step {last['step']}")
    yield from group_table(newest[:GROUPS], screen, kept=set(map(group_key, heads)))
    if len(newest) > GROUPS:
        yield f"… {len(newest) - GROUPS:,} more: --step {last['step']}"
    yield ""
    yield from _ways_on(name, heads, screen, dropped=any(row["dropped"] for row in rows))


def _facts(
    run: RunData, rows: Sequence[Mapping[str, Any]], heads: Sequence[Mapping[str, Any]], screen: Screen
) -> Iterator[str]:
    train = [row for row in rows if row["split"] == "train"]
    heldout = [row for row in rows if row["split"] == "heldout"]
    if train:
        steps, number = sorted({row["step"] for row in train}), count_of(sum(row["samples"] for row in train), "sample")
        course = _course(rewards_by_step(train), steps)
        yield f"steps     {steps[0]} to {steps[-1]} ({one_line_of(run.state)}), {number}{course}"
    if heldout:
        yield f"held-out  {_evaluations(heldout)}"
    told = [f"{screen.verdict(verdict)} {number:,}" for verdict, number in verdict_counts(train or rows)]
    yield "verdicts  " + "  ".join(told)
    if train:
        dropped = Counter(dropped_words(row) for row in train if row["dropped"])
        reasons = (f"; {number:,} {one_line_of(reason)}" for reason, number in dropped.most_common(4))
        taught = sum(bool(row["learned"]) for row in train)
        yield f"groups    {taught:,} of {len(train):,} taught something{''.join(reasons)}"
    kept = Counter(reason for head in heads for reason in head["kept_as"])
    groups = len(set(map(group_key, heads)))
    why = ", ".join(f"{one_line_of(reason)} {number:,}" for reason, number in kept.most_common())
    yield f"kept      {count_of(len(heads), 'sample')} of {count_of(groups, 'group')}{f' ({why})' if why else ''}"


def _ways_on(name: str, heads: Sequence[Mapping[str, Any]], screen: Screen, *, dropped: bool) -> Iterator[str]:
    """What to ask for next."""
    flags = [("--failed", "what did not pass, each with the reason"), ("--eval", "the newest evaluation")]
    if heads:
        shown = _telling(heads)
        one = f"--sample {shown['id']}"
        flags.insert(0, (f"--step {shown['step']} --group {shown['group']}", "a group side by side"))
        flags.insert(1, (one, "one sample: why it got its reward, failing test, program"))
    if not any(head["split"] == "heldout" for head in heads):
        flags.pop()
    if dropped:
        flags.append(("--dropped", "the groups that taught nothing, and why"))
    width = max(len(flag) for flag, _ in flags)
    for flag, what in flags:
        yield f"{screen.paint(f'overlap show {name} {flag}', 'cyan')}{' ' * (width - len(flag))}   {what}"


def _telling(heads: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """A sample that is worth a look: of the newest step of the training, one with the lowest reward, of a group that
    taught something where there is one.
    """
    split = "train" if any(head["split"] == "train" for head in heads) else heads[-1]["split"]
    step = next(head["step"] for head in reversed(heads) if head["split"] == split)
    newest = [head for head in heads if head["split"] == split and head["step"] == step]
    return min(newest, key=lambda head: (bool(head["dropped"]), head["reward"] is None, head["reward"] or 0.0))


def group_table(
    rows: Sequence[Mapping[str, Any]], screen: Screen, kept: Collection[GroupKey] | None = None
) -> Iterator[str]:
    """A line for each group. ``kept``: the groups of which there are samples; others are marked."""
    one_step = len({(row["split"], row["step"]) for row in rows}) == 1
    heading = ["step", "group", "problem", "samples", "solved", "reward", "tokens", "cut off", "verdicts", "taught"]
    cells = []
    for row in rows:
        there = kept is None or group_key(row) in kept
        step = f"{row['step']}{'e' if row['split'] == 'heldout' else ''}"
        verdicts = ", ".join(f"{verdict} {number}" for verdict, number in verdict_counts([row]))
        cells.append(
            [
                step,
                (row["group"], "" if there else "grey"),
                row["prompt_id"],
                row["samples"],
                (row["solved"], "green" if row["solved"] else ""),
                figure(row["reward"]),
                f"{row['tokens']:,}",
                row["truncated"] or "",
                verdicts,
                taught(row) + ("" if there else ", not kept"),
            ]
        )
    if one_step:
        heading, cells = heading[1:], [row[1:] for row in cells]
    yield from screen.table(heading, cells, right="step group samples solved reward tokens")


def verdict_counts(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """How often each verdict was given in these groups, then what had none: all their samples."""
    verdicts: Counter[str] = Counter()
    for row in rows:
        verdicts.update(row["verdicts"])
    failed = sum(row["failed"] for row in rows)
    rest = sum(row["samples"] for row in rows) - verdicts.total() - failed
    others = [("no program", rest), ("not scored", failed)]
    return [*verdicts.most_common(), *((name, number) for name, number in others if number > 0)]


def _course(rewards: Mapping[int, float], steps: Sequence[int]) -> str:
    first, last = (figure(rewards.get(step)) for step in (steps[0], steps[-1]))
    return f", reward {first} → {last}" if len(steps) > 1 else f", reward {last}"


def _evaluations(rows: Sequence[Mapping[str, Any]]) -> str:
    steps = sorted({row["step"] for row in rows})
    binary = rewards_are_passes(rows)
    told = []
    for step in steps:
        values = [row["reward"] for row in rows if row["step"] == step and row["reward"] is not None]
        value = sum(values) / len(values) if values else None  # over the problems, as pass@1 is
        told.append(f"{f'{value:.1%}' if binary and value is not None else figure(value)} after step {step}")
    return ("pass@1 " if binary else "mean reward ") + " → ".join(
        told if len(told) < 5 else [*told[:2], "…", *told[-2:]]
    )
