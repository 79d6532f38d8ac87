"""The command as a process: signals before anything is started, and output that nobody reads or can show."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import ROOT, SUPPORT

# What is tested here is how a process starts and ends, so it does without the real transformers.
LIGHT = os.environ | {"PYTHONPATH": f"{SUPPORT / 'light'}{os.pathsep}{ROOT}"}


@pytest.fixture
def light_policy(tmp_path: Path) -> Path:
    """A checkpoint for it."""
    folder = tmp_path / "policy"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    return folder


WAITS = """
import overlap, signal, sys

class Waits(overlap.Task):
    def prompts(self, tokenizer, split):
        with open(sys.argv[-1].partition("=")[2], "w") as fifo:
            fifo.write("x")
        signal.pause()

    def reward(self, prompt, answer, judgement):
        return 0.0
"""


class Waiting:
    """A run that waits inside the user's task before anything is started."""

    def __init__(self, policy: Path, tmp_path: Path) -> None:
        (tmp_path / "waits.py").write_text(WAITS)
        (tmp_path / "tmp").mkdir()
        os.mkfifo(tmp_path / "fifo")
        args = ["data.task=waits:Waits", f"model.policy={policy}", f"run.dir={tmp_path / 'out'}"]
        environment = LIGHT | {"TMPDIR": str(tmp_path / "tmp")}
        self.tmp = tmp_path / "tmp"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "overlap.cli", "train", *args, f"data.heldout={tmp_path / 'fifo'}"],
            cwd=tmp_path,
            env=environment,
            text=True,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        (tmp_path / "fifo").read_text()


@pytest.fixture
def waiting(light_policy: Path, tmp_path: Path) -> Iterator[Waiting]:
    made = Waiting(light_policy, tmp_path)
    yield made
    made.process.kill()
    made.process.communicate()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_before_anything_was_started_is_one_line_and_leaves_nothing(
    waiting: Waiting, number: int, code: int
) -> None:
    assert [path.name[:4] for path in waiting.tmp.iterdir()] == ["ovl-"]
    waiting.process.send_signal(number)
    _, err = waiting.process.communicate(timeout=60)
    assert (waiting.process.returncode, err) == (code, "overlap: interrupted\n")
    assert list(waiting.tmp.iterdir()) == []


def test_a_closed_terminal_is_no_second_fault(waiting: Waiting) -> None:
    assert waiting.process.stdout
    assert waiting.process.stderr
    waiting.process.stdout.close()
    waiting.process.stderr.close()
    waiting.process.stdout = waiting.process.stderr = None
    waiting.process.send_signal(signal.SIGHUP)
    assert waiting.process.wait(60) == 129
    assert list(waiting.tmp.iterdir()) == []


@pytest.mark.parametrize("closed", ["| true", ">&- 2>&-"])
def test_a_dry_run_whose_output_nobody_reads_complains_of_nothing(
    light_policy: Path, tmp_path: Path, closed: str
) -> None:
    done = dry_run(light_policy, tmp_path, closed)
    assert done.stderr == ""
    assert done.returncode == 0  # of a pipe, that of its last command


def test_a_dry_run_over_a_cluster_asks_it_and_says_in_one_line_what_it_needs(
    light_policy: Path, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        answers = threading.Thread(target=_greet, args=[head], daemon=True)
        answers.start()
        done = dry_run(light_policy, tmp_path, f"cluster.address={address}", RAY_AUTH_MODE="")
        answers.join()
    assert f"cluster.address='{address}': the driver has no token for it" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.returncode == 2


def _greet(head: socket.socket) -> None:
    with head.accept()[0] as one:
        one.sendall(b"\0\0\0\4\0\0\0\0\0")  # settings, in HTTP/2
        one.recv(1000)


def test_a_dry_run_over_a_cluster_that_is_not_there_says_so_before_it_prepares_anything(tmp_path: Path) -> None:
    done = dry_run(tmp_path / "no-policy", tmp_path, "cluster.address=127.0.0.1:1")
    assert "cluster.address='127.0.0.1:1': nothing answers there (Connection refused)" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.returncode == 2


def dry_run(policy: Path, tmp_path: Path, more: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    command = f"{sys.executable} -m overlap.cli train --dry-run data.task=toy:ToyTask model.policy={policy}"
    return subprocess.run(
        ["bash", "-c", f"{command} run.dir={tmp_path / 'out'} {more}"],
        cwd=SUPPORT,
        env=LIGHT | environment,
        capture_output=True,
        text=True,
        timeout=90,
    )


def test_a_dry_run_whose_output_cannot_be_written_says_so(light_policy: Path, tmp_path: Path) -> None:
    done = dry_run(light_policy, tmp_path, ">/dev/full")
    assert done.returncode == 1
    assert (
        done.stderr
        == "overlap: failed: cannot write to stdout: No space left on device; redirect it to another place\n"
    )


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_while_the_program_is_still_imported_ends_it(tmp_path: Path, name: str, code: int) -> None:
    lost = "try:\n    os.kill(os.getpid(), signal.{})\nexcept KeyboardInterrupt:\n    pass\n"  # as a callback loses it
    (tmp_path / "asyncio.py").write_text(f"import os, signal\n{lost.format(name)}")
    done = subprocess.run(
        [sys.executable, "-m", "overlap.cli", "train", "--dry-run"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (code, "overlap: interrupted\n")


def test_what_a_library_does_at_the_exit_of_an_interrupted_command_is_not_waited_for() -> None:
    code = "import atexit; from overlap.cli import command; atexit.register(print, 'the exit hook')"
    done = subprocess.run([sys.executable, "-c", f"{code}; command(lambda: 130)"], env=LIGHT, capture_output=True)
    assert (done.returncode, done.stdout) == (130, b"")


def test_a_signal_in_code_that_is_made_at_an_import_has_the_exit_code_of_the_signal(tmp_path: Path) -> None:
    (tmp_path / "command.py").write_text(
        "from argparse import Namespace\n"
        "from overlap import cli\n"
        "cli._parse = lambda argv: Namespace(run_command=lambda args: exec('raise KeyboardInterrupt(15)'))\n"
        "raise SystemExit(cli.main())"
    )
    done = subprocess.run([sys.executable, "-m", "command"], cwd=tmp_path, env=LIGHT, timeout=60)
    assert done.returncode == 143


def test_a_name_that_the_terminal_cannot_show_is_escaped(light_policy: Path, tmp_path: Path) -> None:
    done = dry_run(light_policy, tmp_path, "data.train='\N{GRINNING FACE}.jsonl'", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "data.train=\\U0001f600.jsonl " in done.stdout


@pytest.mark.parametrize("words", [["train"], ["doctor"]])
def test_without_the_packages_of_a_run_a_command_says_in_one_line_which_extras_have_them(words: list[str]) -> None:
    code = f"import sys; sys.modules['pydantic'] = None; from overlap.cli import main; sys.exit(main({words}))"
    ended = subprocess.run([sys.executable, "-c", code], env=LIGHT, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("overlap: bad input: pydantic is not installed: a run needs the extras train and cpu, ")
