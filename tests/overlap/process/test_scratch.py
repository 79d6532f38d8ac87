"""Where a run works: what is said where it cannot, and how its event loop is run."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from overlap import cli
from overlap.core.errors import OverlapError
from overlap.process.interrupts import Interrupts, handle_interrupts
from overlap.process.run_environment import child_environment
from overlap.process.scratch import run_to_end, scratch_directory


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("kept", [False, True])
def test_what_torch_compiles_goes_with_the_directory_unless_the_user_keeps_it(
    kept: bool, tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    if kept:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp / "kept"))
    with scratch_directory() as (path, _):
        assert Path(cache_dir()).parent == (tmp if kept else path)
        assert child_environment()["TORCHINDUCTOR_CACHE_DIR"] == cache_dir()
    assert [left.name for left in tmp.iterdir()] == ["kept"] * kept
    assert ("TORCHINDUCTOR_CACHE_DIR" in os.environ) is kept


def test_no_temporary_folder_at_all_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    assert cli.main(["check-data", "x.jsonl"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "TMPDIR=" in line
    assert "No usable temporary directory found" in line


def test_a_working_directory_that_was_removed_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    try:
        code = cli.main(["check-data", "x.jsonl"])
    finally:
        os.chdir(tmp_path)
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "working directory" in line


def test_where_no_process_can_be_started_it_is_one_line(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(OverlapError, match=r"no process can be started .*ulimit -u"), scratch_directory():
        raise AssertionError("opened")
    assert list(tmp.iterdir()) == []


class Late(Interrupts):
    """Its loop begins to run when a signal has been received."""

    def __init__(self) -> None:
        super().__init__()
        self.received, self.events = threading.Event(), list[str]()

    def receive(self, number: int, frame: Any) -> None:
        try:
            super().receive(number, frame)
        finally:
            self.received.set()

    async def run(self, work: Any, again: Any = None) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        await asyncio.to_thread(self.received.wait, 30)
        try:
            await super().run(work, again)
        finally:
            self.events.append("ended")


def test_a_signal_before_the_work_beside_a_running_loop_ends_it_before_the_call_returns() -> None:
    late = Late()

    async def work() -> None:
        late.events.append("worked")

    async def cell() -> None:
        run_to_end(work, late)

    before = signal.signal(signal.SIGINT, late.receive)
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(cell())
    finally:
        signal.signal(signal.SIGINT, before)
    assert late.events == ["ended"]
    assert "overlap-run" not in {thread.name for thread in threading.enumerate()}


def test_a_signal_during_the_work_beside_a_running_loop_cancels_it() -> None:
    events: list[str] = []

    async def work() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        try:
            async with asyncio.timeout(30):
                await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            events.append("cancelled")
            raise

    async def cell() -> None:
        with handle_interrupts() as interrupts:
            run_to_end(work, interrupts)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(cell())
    assert events == ["cancelled"]
