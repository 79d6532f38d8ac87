"""Each kind of process of a real run is killed at a random moment: the short form of ``scripts/chaos.sh real``."""

from __future__ import annotations

import subprocess
import sys

import pytest
from machines import why_not
from places import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800), pytest.mark.wide]


def test_no_kill_of_any_member_loses_a_prompt_or_counts_one_twice_or_leaves_anything() -> None:
    """Its seed, and what the run said, are shown when it fails."""
    script = [sys.executable, str(ROOT / "scripts" / "chaos" / "real.py")]
    done = subprocess.run(script, capture_output=True, text=True, timeout=1700, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "7 kills: 0 lost, 0 twice, 0 differ, 0 rows, 0 left, 0 ages"


@pytest.mark.wide
@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("args", [("--events", "8", "--seed", "1"), ("--zoo", "--take", "6")])
def test_no_harm_to_a_cluster_loses_a_program_or_counts_one_twice_and_no_hostile_one_harms_a_cluster(args) -> None:
    script = [sys.executable, str(ROOT / "scripts" / "chaos" / "cluster.py"), *args]
    done = subprocess.run(script, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    books = done.stdout.splitlines()[-1].partition(": ")[2].split(", ")
    assert [book.split()[0] for book in books] == ["0"] * 4, done.stdout
