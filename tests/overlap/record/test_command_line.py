"""Tests of the command in a run's history."""

from __future__ import annotations

import sys

import pytest

from overlap.record.command_line import command_line, masked


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["/x/bin/overlap", "train", "run.dir=runs/a b"], "overlap train 'run.dir=runs/a b'"),
        (["/x/overlap/cli.py", "train", "--resume"], "overlap train --resume"),
        (["/x/bin/overlap", "train", "episode.command=a --token abc"], "overlap train 'episode.command=a --token ***'"),
        (["mine.py", "--wandb", "abc"], "mine.py"),
        ([""], "python"),
    ],
)
def test_the_command_is_kept_without_what_is_anothers(
    words: list[str], kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", words)
    assert command_line() == kept


@pytest.mark.promise("secrets")
@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("--api-key abc --x", "--api-key *** --x"),
        ("API_KEY=abc", "API_KEY=***"),
        ('{"password": "a b", "n": 1}', '{"password": ***, "n": 1}'),
        ("model.prompt_tokens=512", "model.prompt_tokens=512"),
        ("learn.token_mean: 1", "learn.token_mean: 1"),
    ],
)
def test_values_of_passwords_are_masked_and_numbers_of_tokens_are_not(text: str, kept: str) -> None:
    assert masked(text) == kept
