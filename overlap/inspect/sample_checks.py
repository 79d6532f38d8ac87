"""Checks of the answers that get rewards: weak verdicts, one program for many problems, samples that are alike."""

from __future__ import annotations

from overlap.inspect.run_data import RunData
from overlap.inspect.run_warning import RunWarning, all_steps, check, first_names, unsolved
from overlap.record.timing import mean

SAME = 3
"""Problems that one accepted program may solve."""


@check
def weak_verdicts(run: RunData) -> RunWarning | None:
    """Programs were accepted by a test that they could have forged."""
    train = [group for group in run.groups if group["split"] == "train"]
    weak, solved = sum(group["weak"] for group in train), sum(group["solved"] for group in train)
    share = weak / solved if solved else 0.0
    if not share > 0.05:
        return None
    problems = dict.fromkeys(group["prompt_id"] for group in train if group["weak"])
    text = f"{share:.0%} of the accepted programs passed on a token that a program could forge "
    text += f"({first_names(problems)})"
    way_out = "read them for hacks (overlap show RUN); leave such problems out (overlap check-data names them)"
    return RunWarning(all_steps(run), share, 0.05, text, way_out)


@check
def duplicate_programs(run: RunData) -> RunWarning | None:
    """One program is accepted for many problems."""
    problems: dict[str, dict[str, int]] = {}
    for head in run.samples.heads():
        row = head.values
        if row["program_sha256"] and row["verdict"] == "AC":
            problems.setdefault(row["program_sha256"], {}).setdefault(row["prompt_id"], row["step"])
    most = max(problems.values(), key=len, default={})
    if len(most) <= SAME:
        return None
    text = f"one program was accepted for {len(most)} problems ({first_names(most)})"
    way_out = "read it: either the problems are the same, or their tests pay what does not solve them"
    return RunWarning((min(most.values()), max(most.values())), len(most), SAME, text, way_out)


@check
def few_programs(run: RunData) -> RunWarning | None:
    """The samples of a group become one program, and it is not the right one."""
    shares = [
        group["programs"] / group["samples"]
        for group in run.groups
        if group["split"] == "train" and group["samples"] > 1 and not group["solved"]
    ]
    if len(shares) < 16 or not unsolved(run):
        return None
    width = max(8, len(shares) // 10)
    first, last = mean(shares[:width]), mean(shares[-width:])
    if not last < min(0.3, first / 2):
        return None
    text = f"of the programs of a group that solved nothing {last:.0%} differ at the end ({first:.0%} at the beginning)"
    way_out = "raise rollout.temperature or learn.clip_high, or lower learn.lr"
    return RunWarning(all_steps(run), last, min(0.3, first / 2), text, way_out)
