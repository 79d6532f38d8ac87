"""The command as a process: signals, and standard streams that are closed, full, or that nobody reads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from places import ROOT

from sandbox import Case, Problem
from sandbox.kernel.orphan_cleanup import reserve_directory

COMMAND = [sys.executable, "-m", "sandbox"]
SUM = Problem("sum", "stdio", (Case("3 4\n", "7"),))

# It starts a process, tells where it is, and never answers.
WAITS = """
import os, subprocess, time

def reward(problem, program, language):
    child = subprocess.Popen(["sleep", "120"])
    with open(os.environ["FIFO"], "w") as fifo:
        fifo.write(str(child.pid))
    time.sleep(1000)
"""


def environment(directory: Path) -> dict[str, str]:
    (directory / "tmp").mkdir(exist_ok=True)
    return os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(directory / "tmp"), "FIFO": str(directory / "fifo")}


def shell(directory: Path, words: str, *keep: int) -> subprocess.CompletedProcess[str]:
    (directory / "problem.json").write_text(json.dumps(SUM.to_json()))
    (directory / "right.py").write_text("print(7)")
    return subprocess.run(
        ["bash", "-c", f"{sys.executable} -m sandbox {words}"],
        cwd=directory,
        env=environment(directory),
        pass_fds=keep,
        capture_output=True,
        text=True,
        timeout=60,
    )


@contextmanager
def calling(directory: Path) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """The command in the middle of a call of a reward function, and the process that the function has started."""
    (directory / "waits.py").write_text(WAITS)
    os.mkfifo(directory / "fifo")
    process = subprocess.Popen(
        [*COMMAND, "check-reward", "waits:reward", "--no-zoo", "--workers", "1", "--deadline-s", "1000"],
        cwd=directory,
        env=environment(directory),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process, psutil.Process(int((directory / "fifo").read_text()))
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_while_a_reward_function_is_called_is_one_line_and_leaves_nothing(
    tmp_path: Path, number: int, code: int
) -> None:
    with calling(tmp_path) as (process, started):
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (code, "sandbox: interrupted\n")
        with suppress(psutil.NoSuchProcess):
            assert started.status() == psutil.STATUS_ZOMBIE
        assert list((tmp_path / "tmp").iterdir()) == []


def test_what_a_killed_command_leaves_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with calling(tmp_path) as (process, sleeper):
        callers = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        psutil.wait_procs([each for each in callers if each != sleeper], timeout=30)
        sleeper.kill()  # what the function itself starts is not ours to end
    assert list((tmp_path / "tmp").iterdir()) != []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    reserve_directory()
    assert list((tmp_path / "tmp").iterdir()) == []


INTERRUPTED_AT_AN_IMPORT = """
import os, signal, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "sandbox.cli":
            os.kill(os.getpid(), signal.SIGINT)

import sandbox.__main__
early = [name for name in sys.modules if name.startswith("sandbox.")]
sys.meta_path.insert(0, Finder)
print(*sorted(early), flush=True)
sandbox.__main__.command()
"""


def test_a_signal_while_a_command_is_still_imported_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT_AN_IMPORT], env=environment(tmp_path), capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (130, "sandbox: interrupted\n")
    assert done.stdout.split() == ["sandbox.__main__", "sandbox.lazy"]  # before it is heard next to nothing is imported


def test_a_signal_in_code_that_is_made_at_an_import_has_the_exit_code_of_the_signal(tmp_path: Path) -> None:
    (tmp_path / "command.py").write_text(
        "from sandbox import terminal\nraise SystemExit(terminal.attend(lambda: exec('raise KeyboardInterrupt(15)')))"
    )
    done = subprocess.run([sys.executable, "-m", "command"], cwd=tmp_path, env=environment(tmp_path), timeout=60)
    assert done.returncode == 143


@pytest.mark.parametrize("words", ["zoo --json", "judge problem.json right.py", "run right.py"])
def test_output_that_nobody_reads_is_no_fault(tmp_path: Path, words: str) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = shell(tmp_path, f"{words} <&- >&{write}", write)
    finally:
        os.close(write)
    assert done.returncode == 141
    assert "rror" not in done.stderr


def test_output_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    done = shell(tmp_path, "zoo >/dev/full")
    assert done.returncode == 2
    assert done.stderr == "sandbox: error: [Errno 28] No space left on device\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_changes_no_verdict(tmp_path: Path, closed: str) -> None:
    done = shell(tmp_path, f"run right.py {closed}")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
