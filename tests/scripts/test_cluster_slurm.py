"""The script for SLURM, with doubles of its commands and of ``overlap``: what it starts, and that all of it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import ROOT

from overlap.process import process_tree
from overlap.process.process_tree import alive

SCRIPT = ROOT / "scripts" / "cluster" / "slurm.sh"
SRUN = """#!/usr/bin/env bash
# Runs the command, once for each node that it is for.
echo "srun $*" >>"$SLURM_DOUBLE/said"
count=1
while [[ "$1" == --* ]]; do
  case "$1" in --ntasks=*) count=${1#*=} ;; esac
  shift
done
trap 'kill $(jobs -p) 2>/dev/null; wait; exit 143' TERM
for ((i = 0; i < count; i++)); do "$@" & done
wait
"""
SCONTROL = """#!/usr/bin/env bash
[ "$*" = "show hostnames $SLURM_JOB_NODELIST" ] || exit 1
printf '%s\\n' $SLURM_DOUBLE_NODES
"""
GETENT = """#!/usr/bin/env bash
[ "$*" = "ahostsv4 n1" ] && echo "$SLURM_DOUBLE_ADDRESS STREAM n1"
"""
OVERLAP = """#!/usr/bin/env python3
# A run ends when all nodes are there, or waits; a node stays until it is asked to end.
import os, pathlib, signal, socket, sys, time
said, how = pathlib.Path(os.environ["SLURM_DOUBLE"], "said"), os.environ.get("SLURM_DOUBLE_HOW")
def say(*words):
    with said.open("a") as file:
        print(*words, file=file)
def end(number, frame):
    say("ends", sys.argv[1])
    os._exit(7)
signal.signal(signal.SIGTERM, end)
for token in [word for word in sys.argv if word.endswith("/token")]:
    assert (os.stat(token).st_mode & 0o777, os.stat(token).st_size) == (0o600, 64)
say("overlap", *sys.argv[1:], os.environ["XDG_STATE_HOME"])
if how == "broken":
    sys.exit(1)
if sys.argv[1] == "train" and how != "waits":
    while said.read_text().count("\\noverlap cluster") < len(os.environ["SLURM_DOUBLE_NODES"].split()):
        time.sleep(0.03)
    sys.exit(3)
if "--address" in sys.argv:
    port = sys.argv[sys.argv.index("--address") + 1].rpartition(":")[2]
    server = socket.create_server(("127.0.0.1", int(port)))
signal.pause()
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    yield Job(tmp_path)
    process_tree.kill_tree(process_tree.marked(f"SLURM_DOUBLE={tmp_path}"), 5.0)


class Job:
    """A job of SLURM's over nodes n1, n2 and n3, as the script sees it."""

    def __init__(self, place: Path) -> None:
        self.place, self.submitted = place, place / "submitted"
        (place / "venv" / "bin").mkdir(parents=True)
        self.submitted.mkdir()
        for name, text in {"srun": SRUN, "scontrol": SCONTROL, "getent": GETENT, "venv/bin/overlap": OVERLAP}.items():
            (place / name).write_text(text)
            (place / name).chmod(0o755)
        with socket.create_server(("127.0.0.1", 0)) as server:
            number = 100000 + server.getsockname()[1]
        self.environment = os.environ | {
            "PATH": f"{place}{os.pathsep}{os.environ['PATH']}",
            "OVERLAP_VENV": str(place / "venv"),
            "OVERLAP_HEAD_ADDRESS": "localhost",  # as a name, for the script refuses loopback
            "SLURM_DOUBLE": str(place),
            "SLURM_DOUBLE_NODES": "n1 n2 n3",
            "SLURM_JOB_ID": str(number),
            "SLURM_JOB_NODELIST": "n[1-3]",
            "SLURM_CPUS_ON_NODE": "16",
            "SLURM_SUBMIT_DIR": str(self.submitted),
        }
        self.port = 20000 + number % 10000

    def start(self) -> subprocess.Popen[str]:
        command, pipe = ["bash", str(SCRIPT), "--config", "a.yaml", "run.steps=2"], subprocess.PIPE
        return subprocess.Popen(command, env=self.environment, cwd="/", text=True, stdout=pipe, stderr=pipe)

    def run(self) -> tuple[int, str]:
        with self.start() as process:
            _, err = process.communicate(timeout=60)
        return process.returncode, err

    def said(self, what: str) -> list[str]:
        """Lines that begin so."""
        file = self.place / "said"
        return [line for line in file.read_text().splitlines() if line.startswith(what)] if file.exists() else []

    def nothing_is_left(self) -> None:
        assert [process for process in process_tree.marked(f"SLURM_DOUBLE={self.place}") if alive(process)] == []
        assert list(self.submitted.iterdir()) == []


@pytest.mark.parametrize("nodes", ["n1", "n1 n2 n3"])
def test_the_run_is_over_a_head_and_the_further_nodes_with_a_token_of_the_job(nodes: str, job: Job) -> None:
    assert os.access(SCRIPT, os.X_OK) == os.access(ROOT / "scripts" / "test.sh", os.X_OK)
    job.environment["SLURM_DOUBLE_NODES"] = nodes
    assert job.run() == (3, "")  # as the run ended
    address, (head, *further) = f"localhost:{job.port}", job.said("srun ")
    assert "--nodelist=n1" in head
    assert "--cpus-per-task=16" in head
    assert f"cluster up --block --address {address} --token-file " in head
    assert len(further) == (nodes != "n1")
    for more in further:
        assert "--nodes=2 --ntasks=2 --ntasks-per-node=1 --exclude=n1" in more
        assert f"cluster up --block --join {address} --token-file " in more
    (train,) = job.said("overlap train")
    assert train.startswith(f"overlap train --config a.yaml run.steps=2 cluster.address={address} ")
    assert len({line.split()[-1] for line in job.said("overlap")}) == 1  # one folder for what is kept of the nodes
    job.nothing_is_left()


def test_a_job_that_is_asked_to_end_ends_the_run_first_and_leaves_nothing(job: Job) -> None:
    job.environment["SLURM_DOUBLE_HOW"] = "waits"
    with job.start() as process:
        while not job.said("overlap train"):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 143
    first, *others = job.said("ends")
    assert first == "ends train"
    assert set(others) == {"ends cluster"}
    job.nothing_is_left()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"SLURM_JOB_ID": ""}, "is for sbatch"),
        ({"OVERLAP_VENV": "nowhere"}, "no "),
        ({"OVERLAP_HEAD_ADDRESS": "", "SLURM_DOUBLE_ADDRESS": "127.0.1.1"}, "set OVERLAP_HEAD_ADDRESS"),
        ({"SLURM_DOUBLE_NODES": "n9", "OVERLAP_HEAD_ADDRESS": ""}, "set OVERLAP_HEAD_ADDRESS"),
        ({"SLURM_DOUBLE_HOW": "broken"}, "head did not start on n1"),
    ],
)
def test_what_the_script_needs_and_does_not_have_is_one_line(changed: dict[str, str], message: str, job: Job) -> None:
    job.environment.update(changed)
    code, err = job.run()
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1
    assert not job.said("overlap train")
    job.nothing_is_left()
