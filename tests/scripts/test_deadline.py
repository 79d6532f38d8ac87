"""The deadline of tests, in runs of pytest of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

CONFTEST = """
import deadline
deadline.MARGIN_S = 0.5
def pytest_configure(config):
    config.pluginmanager.register(deadline.Deadline())
"""
WAITS = """
import signal
import pytest
def test_that_waits_for_a_signal_which_another_thread_took():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    signal.sigwait({signal.SIGUSR1})
def test_after_it():
    pass
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_test_that_no_signal_ends_is_ended_with_the_stacks_of_all_threads(workers: str, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_waits.py").write_text(WAITS)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 0.5\n")
    argv = [sys.executable, "-m", "pytest", "-q", "-n", workers, "-p", "no:cacheprovider", str(tmp_path)]
    paths = f"{ROOT / 'tests' / 'support'}:{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        argv, cwd=tmp_path, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Timeout (0:00:01)!" in done.stderr
    assert "in test_that_waits_for_a_signal_which_another_thread_took" in done.stderr
    assert workers == "0" or "1 failed, 1 passed" in done.stdout
