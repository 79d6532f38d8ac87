"""kill -9 at random moments, then --resume: the short form of ``scripts/chaos.sh fakes``, in real processes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from places import ROOT


@pytest.mark.promise("resume")
def test_a_run_that_is_killed_again_and_again_is_the_run_that_nobody_killed() -> None:
    script = [sys.executable, str(ROOT / "scripts" / "chaos" / "fakes.py"), "--kills", "2", "--steps", "12"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "2 kills: 0 lost, 0 twice, 0 differ, 0 rows, 0 left"
