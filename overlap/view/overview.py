"""What a run has: steps, verdicts, kept groups, and the groups of its newest step as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from overlap.analysis import RunData
from overlap.view.source import group_rows
from overlap.view.terminal import Screen, count_of, figure, one_line_of

GROUPS = 24
"""Groups of the newest step that the overview shows."""
Place = tuple[str, int, int]


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
    yield from group_table(newest[:GROUPS], screen, kept={(h["split"], h["step"], h["group"]) for h in heads})
    if len(newest) > GROUPS:
        yield f"… {len(newest) - GROUPS:,} more: --step {last['step']}"
    yield ""
    yield from _ways_on(name, heads, screen)


def _facts(
    run: RunData, rows: Sequence[Mapping[str, Any]], heads: Sequence[Mapping[str, Any]], screen: Screen
) -> Iterator[str]:
    train = [row for row in rows if row["split"] == "train"]
    heldout = [row for row in rows if row["split"] == "heldout"]
    if train:
        steps, number = sorted({row["step"] for row in train}), count_of(sum(row["samples"] for row in train), "sample")
        yield f"steps     {steps[0]} to {steps[-1]}{_state(run)}, {number}{_course(train, steps)}"
    if heldout:
        yield f"held-out  {_evaluations(heldout)}"
    verdicts: Counter[str] = Counter()
    for row in rows:
        verdicts.update(row["verdicts"])
    failed = sum(row["failed"] for row in rows)
    told = [f"{screen.verdict(verdict)} {number:,}" for verdict, number in verdicts.most_common()]
    yield "verdicts  " + "  ".join([*told, *([f"not scored {failed:,}"] if failed else [])])
    if train:
        dropped = Counter(row["dropped"] for row in train if row["dropped"])
        reasons = (f"; {number:,} {one_line_of(reason.replace('_', ' '))}" for reason, number in dropped.most_common(4))
        taught = sum(bool(row["learned"]) for row in train)
        yield f"groups    {taught:,} of {len(train):,} taught something{''.join(reasons)}"
    kept = Counter(reason for head in heads for reason in head["kept_as"])
    groups = len({(h["split"], h["step"], h["group"]) for h in heads})
    why = ", ".join(f"{one_line_of(reason)} {number:,}" for reason, number in kept.most_common())
    yield f"kept      {count_of(len(heads), 'sample')} of {count_of(groups, 'group')}{f' ({why})' if why else ''}"


def _ways_on(name: str, heads: Sequence[Mapping[str, Any]], screen: Screen) -> Iterator[str]:
    """What to ask for next."""
    flags = [("--failed", "what did not pass, each with the reason"), ("--eval", "the newest evaluation")]
    if heads:
        shown = next((head for head in reversed(heads) if head["split"] == "train"), heads[-1])
        one = f"--sample g{shown['group']}s{shown['sample']}"
        flags.insert(0, (f"--step {shown['step']} --group {shown['group']}", "a group side by side"))
        flags.insert(1, (one, "one sample: why it got its reward, failing test, program"))
    if not any(head["split"] == "heldout" for head in heads):
        flags.pop()
    width = max(len(flag) for flag, _ in flags)
    for flag, what in flags:
        yield f"{screen.paint(f'overlap show {name} {flag}', 'cyan')}{' ' * (width - len(flag))}   {what}"


def group_table(
    rows: Sequence[Mapping[str, Any]], screen: Screen, kept: Collection[Place] | None = None
) -> Iterator[str]:
    """A line for each group. ``kept``: the groups of which there are samples; others are marked."""
    one_step = len({(row["split"], row["step"]) for row in rows}) == 1
    heading = ["step", "group", "problem", "samples", "solved", "reward", "tokens", "cut off", "verdicts", "taught"]
    cells = []
    for row in rows:
        there = kept is None or (row["split"], row["step"], row["group"]) in kept
        step = f"{row['step']}{'e' if row['split'] == 'heldout' else ''}"
        verdicts = " ".join(f"{verdict} {number}" for verdict, number in sorted(row["verdicts"].items()))
        if row["failed"]:
            verdicts += f" not scored {row['failed']}"
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
                _taught(row) + ("" if there else ", not kept"),
            ]
        )
    if one_step:
        heading, cells = heading[1:], [row[1:] for row in cells]
    yield from screen.table(heading, cells, right="step group samples solved reward tokens truncated")


def _taught(row: Mapping[str, Any]) -> str:
    if row["split"] == "heldout":
        return "held-out"
    return "yes" if row["learned"] else row["dropped"].replace("_", " ") or "no"


def _state(run: RunData) -> str:
    if run.live:
        return " (goes on)"
    return f" ({one_line_of(run.summary['exit'])})" if run.summary else ""


def _course(train: Sequence[Mapping[str, Any]], steps: Sequence[int]) -> str:
    first, last = (_mean([row for row in train if row["step"] == step]) for step in (steps[0], steps[-1]))
    return f", reward {figure(first)} → {figure(last)}" if len(steps) > 1 else f", reward {figure(last)}"


def _evaluations(rows: Sequence[Mapping[str, Any]]) -> str:
    steps = sorted({row["step"] for row in rows})
    told = [f"{figure(_mean([r for r in rows if r['step'] == step]))} after step {step}" for step in steps]
    return "reward " + " → ".join(told if len(told) < 5 else [*told[:2], "…", *told[-2:]])


def _mean(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The mean reward over samples that were judged."""
    weights = [(row["reward"], row["samples"] - row["failed"]) for row in rows if row["reward"] is not None]
    total = sum(number for _, number in weights)
    return sum(reward * number for reward, number in weights) / total if total else None
