"""The last three lines of a run, however it ended."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

from overlap import cli
from overlap.record.closing import closing_lines
from overlap.record.report import summary
from overlap.record.run_summary import RunExit

ROWS = [{"step": k, "reward/mean": k / 10, "time/step_s": 10.0} for k in range(1, 11)]
BEFORE, AFTER = {"value": 0.25, "low": 0.2, "high": 0.3}, {"value": 0.5, "low": 0.4, "high": 0.6, "step": 10}
BETTER, SAME = {"value": 0.25, "low": 0.125, "high": 0.375}, {"value": 0.02, "low": -0.01, "high": 0.05}
POLICY = {"path": "/elsewhere/runs/x/policy", "version": 10}
RUN = "/elsewhere/runs/x"
SHOW = f"overlap show {RUN} | overlap report {RUN}"
USE = f"overlap rollout --config {RUN}/config.yaml model.policy={RUN}/policy"


def closing(
    exit: str = "finished", change: dict[str, float] | None = None, checkpoint: str = "", steps: int = 10, **extra: Any
) -> tuple[str, str, str]:
    """The texts of the three lines."""
    found = {"before": BEFORE, "after": AFTER, "change": change} if change else {}
    made = summary(
        ROWS, reason=exit, seconds=300, run_dir=Path(RUN), evaluations=found, extra={"policy": POLICY} | extra
    )
    lines = closing_lines(made, steps=steps, checkpoint=checkpoint)
    assert [line[:9].strip() for line in lines] == ["outcome", "look at", "next"]
    outcome, look_at, following = (line[9:] for line in lines)
    return outcome, look_at, following


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"change": BETTER},
            "finished, 10 steps in 5 min: held-out pass@1 25.0% -> 50.0% (+25.0 points, 95% CI +12.5 to +37.5)",
        ),
        ({"change": SAME}, "(+2.0 points, 95% CI -1.0 to +5.0), no clear change: the interval includes 0"),
        ({}, "finished, 10 steps in 5 min: reward in training 0.300 -> 0.800, not measured on held-out problems"),
        ({"exit": "interrupted", "steps": 30}, "interrupted, 10 of 30 steps in 5 min: reward in training 0.300"),
        ({"exit": "error: engine died\nat step 3", "steps": 30}, "error: engine died at step 3, 10 of 30 steps"),
        ({"reward": {"first": math.nan, "last": math.nan}}, "no reward was measured"),
        (
            {"heldout_reward": {"before": BEFORE, "after": AFTER, "change": BETTER}},
            "held-out mean reward 0.250 -> 0.500 (+0.250, 95% CI +0.125 to +0.375)",
        ),
    ],
)
def test_the_first_line_says_how_it_ended_and_what_was_gained_with_its_interval(
    given: dict[str, Any], told: str
) -> None:
    outcome, _, _ = closing(**given)
    assert told in outcome
    assert "nan" not in outcome


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {},
            f"{RUN}/picture.png (curves), {RUN}/trajectories.jsonl (samples with verdicts), {RUN}/run.log (log)",
        ),
        (
            {"not_written": ["picture.png: No space left on device"]},
            f"{RUN}/trajectories.jsonl (samples with verdicts), {RUN}/run.log (log)",
        ),
        ({"warnings": ["entropy fell to 0.01"]}, "warning: entropy fell to 0.01"),
        ({"warnings": ["one\nline", "two", "three"]}, "warning: one line (and 2 more above)"),
    ],
)
def test_the_second_line_is_the_first_warning_or_the_files_that_tell_most(given: dict[str, Any], told: str) -> None:
    assert closing(**given)[1] == told


FAILED = {"policy": {"failure": "the disk is full", "checkpoint": "c"}}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, f"{SHOW} | {USE}"),
        ({"exit": "all prompts solved"}, f"{SHOW} | {USE}"),
        (FAILED, SHOW),
        (FAILED | {"checkpoint": "step-8"}, f"overlap export {RUN} (the policy after step-8) | {SHOW}"),
        (
            {"exit": "drained", "checkpoint": "step-8"},
            f"overlap train --resume run.dir={RUN} (goes on from step-8) | {SHOW}",
        ),
        (
            {"exit": "interrupted"},
            f"overlap train --config {RUN}/config.yaml model.policy={RUN}/policy run.dir=NEW "
            f"(no checkpoint: run.save_every makes them) | {SHOW}",
        ),
        ({"exit": "error: x"} | FAILED, f"{SHOW} (nothing to resume from: run.save_every makes checkpoints)"),
    ],
)
def test_the_third_line_is_the_command_that_follows(given: dict[str, Any], told: str) -> None:
    assert closing(**given)[2] == told


@pytest.mark.parametrize("exit", ["finished", "stopped"])
@pytest.mark.parametrize("checkpoint", ["", "step-8"])
@pytest.mark.parametrize("more", [{}, FAILED])
def test_every_command_that_is_proposed_can_be_typed(exit: str, checkpoint: str, more: dict[str, Any]) -> None:
    for command in closing(exit, checkpoint=checkpoint, **more)[2].split(" | "):
        words = shlex.split(command.partition(" (")[0])
        assert words[0] == "overlap"
        assert cli._parse(words[1:]).run_command


@pytest.mark.parametrize("member", RunExit)
def test_a_text_is_known_by_the_words_that_it_begins_with_and_a_detail_changes_nothing(member: RunExit) -> None:
    assert RunExit.of(member.value) is RunExit.of(f"{member}: stopped, finished") is member


def test_the_documentation_has_a_row_for_every_end_and_no_other() -> None:
    page = (ROOT / "docs" / "training.md").read_text("utf-8")
    table = page.partition("| `exit` begins with |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE) == [member.value for member in RunExit]


def test_no_other_module_has_these_words_of_its_own() -> None:
    words = "|".join(re.escape(member) for member in RunExit if " " in member or member is RunExit.DRAINED)
    found = [
        str(path.relative_to(ROOT))
        for package in ("overlap", "recipes")
        for path in (ROOT / package).rglob("*.py")
        if re.search(f'"({words})', path.read_text("utf-8"))
    ]
    assert found == ["overlap/record/run_summary.py"]
