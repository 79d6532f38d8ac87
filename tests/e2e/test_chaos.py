"""Each kind of process of a real run is killed at a random moment: the short form of ``scripts/chaos.sh real``."""

from __future__ import annotations

import subprocess
import sys

import pytest
from places import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800), pytest.mark.wide]


def test_no_kill_of_any_member_loses_a_prompt_or_counts_one_twice_or_leaves_anything() -> None:
    """Its seed, and what the run said, are shown when it fails."""
    script = [sys.executable, str(ROOT / "scripts" / "chaos" / "real.py")]
    done = subprocess.run(script, capture_output=True, text=True, timeout=1700, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "7 kills: 0 lost, 0 twice, 0 differ, 0 rows, 0 left, 0 ages"
