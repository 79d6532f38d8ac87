"""``overlap show RUN``: outcome, verdicts, kept groups, the groups of the newest step as a table, and more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from overlap.core.errors import count_of
from overlap.inspect.run_data import RunData
from overlap.inspect.sample_reason import dropped_words, trained_on
from overlap.inspect.terminal import figure, hint, one_line_of, table, title, verdict_cell
from overlap.record.sample_file import GroupKey, group_key

GROUPS = 24
"""Groups of the newest step that the overview shows."""
Rows = Sequence[Mapping[str, Any]]


def overview(run: RunData, name: str) -> Iterator[RenderableType]:
    """Yield an overview of run ``name``, which is quoted for a shell."""
    heads, rows = [head.values for head in run.samples.heads()], run.group_rows
    yield title(name)
    if not rows:
        yield "no step has ended yet" if run.live else "no samples are kept here"
        return
    facts = list(_facts(run, rows, heads))
    width = max(len(what) for what, _ in facts) + 2
    yield from (Text.assemble((f"{what:{width}}", "bright_black"), text) for what, text in facts)
    last = next((row for row in reversed(rows) if row["split"] == "train"), rows[-1])
    newest = [row for row in rows if row["step"] == last["step"] and row["split"] == last["split"]]
    yield ""
    yield title(f"step {last['step']}")
    yield group_table(newest[:GROUPS], kept=set(map(group_key, heads)))
    if len(newest) > GROUPS:
        yield f"… {len(newest) - GROUPS:,} more: --step {last['step']}"
    yield ""
    flags = _next_flags(heads, dropped=any(row["dropped"] for row in rows))
    width = max(len(flag) for flag, _ in flags)
    yield from (hint(f"overlap show {name} {flag:{width}}", what) for flag, what in flags)


def _facts(run: RunData, rows: Rows, heads: Rows) -> Iterator[tuple[str, str | Text]]:
    """The figures of the page, then what became of the samples of training."""
    from overlap.inspect.outcome import cards  # with all that computes intervals

    for name, value, note in cards(run) if run.steps else ():
        yield name, Text.assemble(one_line_of(value), (f"  {one_line_of(note)}", "bright_black"))
    train = [row for row in rows if row["split"] == "train"]
    verdicts = [(verdict_cell(verdict), number) for verdict, number in verdict_counts(train or rows)]
    told = (Text.assemble((one_line_of(verdict), style), f" {number:,}") for (verdict, style), number in verdicts)
    yield "verdicts", Text("  ").join(told)
    if train:
        dropped = Counter(dropped_words(row) for row in train if row["dropped"])
        reasons = "".join(f"; {number:,} {one_line_of(reason)}" for reason, number in dropped.most_common(4))
        yield "groups", f"{sum(bool(row['learned']) for row in train):,} of {len(train):,} trained on{reasons}"
    kept = Counter(reason for head in heads for reason in head["kept_as"])
    why = ", ".join(f"{one_line_of(reason)} {number:,}" for reason, number in kept.most_common())
    groups = count_of(len(set(map(group_key, heads))), "group")
    yield "kept", f"{count_of(len(heads), 'sample')} of {groups}{f' ({why})' if why else ''}"


def _next_flags(heads: Rows, *, dropped: bool) -> list[tuple[str, str]]:
    """Flags that a person may use next, each with its effect."""
    flags = [("--failed", "what did not pass, each with the reason")]
    if heads:
        shown = _telling(heads)
        side = (f"--step {shown['step']} --group {shown['group']}", "a group side by side")
        one = (f"--sample {shown['id']}", "one sample: why it got its reward, failing test, program")
        flags = [side, one, *flags]
    if any(head["split"] == "heldout" for head in heads):
        flags.append(("--eval", "the newest evaluation"))
    return [*flags, ("--dropped", "the groups that were not trained on, and why")] if dropped else flags


def _telling(heads: Rows) -> Mapping[str, Any]:
    """A sample that is worth a look: of the newest step of the training, one with the lowest reward, of a group that
    was trained on where there is one.
    """
    split = "train" if any(head["split"] == "train" for head in heads) else heads[-1]["split"]
    step = next(head["step"] for head in reversed(heads) if head["split"] == split)
    newest = [head for head in heads if head["split"] == split and head["step"] == step]
    return min(newest, key=lambda head: (bool(head["dropped"]), head["reward"] is None, head["reward"] or 0.0))


def group_table(rows: Rows, kept: Collection[GroupKey] | None = None) -> Table:
    """A line for each group. ``kept``: the groups of which there are samples; others are marked."""
    heading = ["step", "group", "problem", "samples", "solved", "reward", "tokens", "cut off", "verdicts", "trained on"]
    cells = []
    for row in rows:
        there = kept is None or group_key(row) in kept
        cells.append(
            [
                f"{row['step']}{'e' if row['split'] == 'heldout' else ''}",
                (row["group"], "" if there else "bright_black"),
                row["prompt_id"],
                row["samples"],
                (row["solved"], "green" if row["solved"] else ""),
                figure(row["reward"]),
                f"{row['tokens']:,}",
                row["truncated"] or "",
                ", ".join(f"{verdict} {number}" for verdict, number in verdict_counts([row])),
                trained_on(row) + ("" if there else ", not kept"),
            ]
        )
    if len({(row["split"], row["step"]) for row in rows}) == 1:  # the heading says it
        heading, cells = heading[1:], [row[1:] for row in cells]
    return table(heading, cells, right="step group samples solved reward tokens")


def verdict_counts(rows: Rows) -> list[tuple[str, int]]:
    """Count each verdict in these groups, then the samples without a verdict: together all samples of the groups."""
    verdicts: Counter[str] = Counter()
    for row in rows:
        verdicts.update(row["verdicts"])
    failed = sum(row["failed"] for row in rows)
    rest = sum(row["samples"] for row in rows) - verdicts.total() - failed
    others = [("no program", rest), ("not scored", failed)]
    return [*verdicts.most_common(), *((name, number) for name, number in others if number > 0)]
