"""A foreign program is ended with all that it began; where that cannot be, whoever waits is told within a time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from overlap.core.errors import RolloutError
from overlap.process.process_tree import identify
from overlap.server import harness_process
from overlap.server.harness_process import run_agent


async def test_what_cannot_be_ended_is_named_within_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of processes that each begin the next one and end, faster than they are looked for."""
    tried = []
    monkeypatch.setattr(harness_process, "END_S", 0.1)
    monkeypatch.setattr(harness_process, "NAMED", 1)
    lives = identify(1)
    assert lives is not None
    monkeypatch.setattr(harness_process.process_tree, "marked", lambda mark: [lives] * 3)
    monkeypatch.setattr(harness_process.process_tree, "kill_tree", lambda pids, *given, **more: tried.append(pids))
    with pytest.raises(RolloutError, match=r"still run after 0.1 s of SIGKILL: 1 \(.+\) and 2 more"):
        await run_agent(["true"], tmp_path, {}, asyncio.Event(), 1.0)
    assert len(tried) > 1
