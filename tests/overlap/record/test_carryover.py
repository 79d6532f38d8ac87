"""Results that no step has taken come back from a checkpoint as they were."""

from __future__ import annotations

import errno
import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from overlap.core import Prompt, Request, Scored, Trajectory, Used, VersionSpan
from overlap.errors import ConfigError, RunDirError
from overlap.record import carryover as module
from overlap.record.carryover import CARRIED, Carryover, save_carryover
from overlap.record.checkpoint import writing
from sandbox.core import CaseResult, Judgement, Verdict

PROMPTS = [Prompt(f"p{i}", (1, 2, i)) for i in range(3)]
CASES = (CaseResult(0, Verdict.AC, 0.1, 0.2, 7), CaseResult(1, Verdict.WA, 0.3, 0.4, 8, "no", (("judge.txt", "x"),)))
JUDGED = Judgement("p", Verdict.WA, CASES, 1, 3, True, "B", "python", "3.11", "warning: \ud800", 0.25, 0.5, 0.125)


def prompt_of(group: int) -> Prompt:
    return PROMPTS[group % len(PROMPTS)]


def scored(group: int = 4, sample: int = 1, **changes: object) -> Scored:
    spans = (VersionSpan(3, 0, 2), VersionSpan(4, 2, 3))
    request = Request(group, sample, prompt_of(group))
    text = "a lone \udc80, a line's \u2028 end\n"
    trajectory = Trajectory(request, (5, 2**31 - 1, 0), (-0.1, -1e-30, 0.0), text, "stop", spans, 10.0, 12.5)
    return replace(Scored(trajectory, 0.1, JUDGED, "", 12.5, 13.0, 14.0), **changes)


def episode() -> Scored:
    """Of two turns with something between them, and one that was thrown away."""
    plain = scored().trajectory
    fork = replace(plain, prompt_ids=(7, 8, 9), mask=b"\1\0\1")
    main = replace(plain, prompt_ids=(7, 8), mask=b"\1\0\1", turns=2, forks=(fork,), failure="it crashed")
    main = replace(main, used=Used(3, 9, 30, 16, 1, 0))
    return replace(scored(), trajectory=main)


def given_up(group: int = 5) -> Scored:
    trajectory = Trajectory(Request(group, 0, prompt_of(group)), (), (), "", "abort", (), 9.0, 11.0)
    return Scored(trajectory, None, None, "no end of generate")


def back(folder: Path, at_s: float = 0.0) -> tuple[Scored, ...]:
    return Carryover.load(folder).scored(prompt_of, at_s)


def test_everything_of_a_result_comes_back_bit_for_bit(tmp_path: Path) -> None:
    results = (scored(), given_up(), episode())
    save_carryover(tmp_path, results, 0.0)
    assert back(tmp_path) == results
    assert len(Carryover.load(tmp_path)) == 3


def test_a_field_that_results_get_must_be_carried_too() -> None:
    known = {
        # the same for all training samples, or of one turn
        Request: {"group", "sample", "prompt", "temperature", "top_p", "turn", "max_tokens", "stop"},
        Trajectory: {
            *("request", "token_ids", "logprobs", "text", "finish", "spans", "started_s", "finished_s"),
            *("prompt_ids", "mask", "turns", "forks", "failure", "used"),
            "cached_tokens",  # of a turn; an episode's are in "used"
        },
        Scored: {"trajectory", "reward", "judgement", "failure", "queued_s", "started_s", "finished_s"},
    }
    assert {noun: {f.name for f in fields(noun)} for noun in known} == known


def test_on_another_clock_no_time_has_passed_since_the_checkpoint(tmp_path: Path) -> None:
    save_carryover(tmp_path, [scored(), given_up()], 20.0)
    first, second = back(tmp_path, 3.0)
    assert (first.trajectory.started_s, first.trajectory.finished_s) == (-7.0, -4.5)
    assert (first.queued_s, first.started_s, first.finished_s) == (-4.5, -4.0, -3.0)
    assert (second.queued_s, second.started_s, second.finished_s) == (0.0, 0.0, 0.0)  # was never verified


def test_a_token_takes_eight_bytes_and_their_base64(tmp_path: Path) -> None:
    tokens = 10_000
    short = scored()
    long = replace(short, trajectory=replace(short.trajectory, token_ids=(9,) * tokens, logprobs=(-0.5,) * tokens))
    sizes = []
    for one in (short, long):
        save_carryover(tmp_path, [one], 0.0)
        sizes.append((tmp_path / CARRIED).stat().st_size)
    assert sizes[1] - sizes[0] < 8 * tokens * 4 / 3 + 100


def test_the_file_is_the_same_on_a_machine_that_stores_numbers_the_other_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.sys, "byteorder", "big")
    save_carryover(tmp_path, [scored()], 0.0)
    assert back(tmp_path) == (scored(),)
    row = json.loads((tmp_path / CARRIED).read_text().splitlines()[1])
    monkeypatch.setattr(module.sys, "byteorder", "little")
    save_carryover(tmp_path, [scored()], 0.0)
    assert json.loads((tmp_path / CARRIED).read_text().splitlines()[1])["token_ids"] != row["token_ids"]


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda text: "", "cannot be read"),
        (lambda text: text[: len(text) // 2], "cannot be read"),
        (lambda text: text.splitlines()[0] + "\n", "has 0 of 1 samples"),
        (lambda text: text.replace('"format": 1', '"format": 9'), "has another format than 1"),
        (lambda text: text.replace('"token_ids": "', '"token_ids": "!'), "cannot be read"),
        (lambda text: text.replace('"finish"', '"ende"'), "cannot be read"),
        (lambda text: text.replace('"prompt": "p1"', '"prompt": "p2"'), "group 4 was of prompt 'p2', here it is of"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, spoil, told: str) -> None:
    save_carryover(tmp_path, [scored()], 0.0)
    file = tmp_path / CARRIED
    file.write_text(spoil(file.read_text()))
    with pytest.raises(ConfigError, match=told) as caught:
        back(tmp_path)
    assert str(file) in str(caught.value)


def test_a_full_disk_leaves_no_half_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("overlap.atomic.os.fsync", full)
    with pytest.raises(RunDirError, match="No space left"), writing(tmp_path, 1) as folder:
        save_carryover(folder, [scored()], 0.0)
    assert list(tmp_path.iterdir()) == []
