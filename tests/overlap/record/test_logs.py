"""Chatter goes to the log, the console to the terminal, and everything is put back afterwards."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from places import ROOT

from overlap.record.logs import quiet


def run(code: str, log: Path, **options) -> subprocess.CompletedProcess[str]:
    """Run a program that has ``log`` and everything it needs imported; its output goes to pipes."""
    head = f"""
        import ctypes, logging, os, sys, warnings
        from pathlib import Path
        from overlap.record.logs import Console, guest, quiet
        log = Path({str(log)!r})
    """
    program = textwrap.dedent(head) + textwrap.dedent(code)
    command = [sys.executable, "-c", program]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}  # it would unbuffer C's streams, too
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False, **options
    )


CHATTER = """
    logging.basicConfig(level=logging.INFO, format="%(message)s")     # holds the stream of before
    with quiet(log) as console:
        print("from print")
        print("from stderr", file=sys.stderr)
        logging.getLogger("lib").info("from logging")
        warnings.warn("from warnings")
        os.write(1, b"from a descriptor\\n")
        os.system("echo from a child; echo from its stderr >&2")
        ctypes.CDLL(None).printf(b"from C\\n")
        late = logging.StreamHandler()                                # takes the stream of within
        console.print("from the console")
    print("afterwards on stdout", flush=True)
    print("afterwards on stderr", file=sys.stderr)
    logging.getLogger("lib").info("afterwards from logging")
    late.emit(logging.makeLogRecord({"msg": "afterwards from a late handler"}))
    os.system("echo afterwards from a child")
"""


def test_chatter_of_every_kind_goes_to_the_log_and_the_console_to_the_terminal(tmp_path):
    done = run(CHATTER, tmp_path / "run.log")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "afterwards on stdout\nafterwards from a child\n"
    assert done.stderr.splitlines() == [
        "from the console",
        "afterwards on stderr",
        "afterwards from logging",
        "afterwards from a late handler",
    ]
    logged = (tmp_path / "run.log").read_text()
    for text in ("print", "stderr", "logging", "warnings", "a descriptor", "a child", "its stderr", "C", "the console"):
        assert f"from {text}\n" in logged or f"from {text}" in logged, text


GUEST = """
    import asyncio, contextvars, threading
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    before = len(os.listdir("/proc/self/fd"))

    async def work():
        logging.getLogger("torch.task").warning("a library's in a task")
        await asyncio.to_thread(logging.getLogger("vllm").error, "a library's in a thread, %s", "too")

    with guest(log, sys.stderr) as console:
        late = logging.getLogger("transformers")      # sets its handler up when it is imported, that is now
        late.addHandler(logging.StreamHandler())
        late.propagate = False
        late.warning("a library's")
        asyncio.run(work())
        print("from print", flush=True)
        os.system("echo from a child")
        logging.getLogger("mine").info("from the caller's logger")
        logging.getLogger("torch").info("a library's with %d argument too few: %s", 1)
        caller = threading.Thread(target=late.warning, args=("for the caller's own thread",))
        caller.start(); caller.join()
        console.print("from the console")
        console.note("for the log")
        kept = contextvars.copy_context()
    kept.run(late.warning, "from a thread that goes on")
    console.print("afterwards from the console")
    print(len(os.listdir("/proc/self/fd")) - before, logging.getLogRecordFactory() is logging.LogRecord)
"""


def test_a_run_in_somebody_elses_process_takes_nothing_but_what_libraries_log_for_it(tmp_path):
    done = run(GUEST, tmp_path / "run.log")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "from print\nfrom a child\n0 True\n"
    said = [line for line in done.stderr.splitlines() if line.startswith(("from", "for", "afterwards", "a library's"))]
    assert said == [
        "from the caller's logger",
        "for the caller's own thread",
        "from the console",
        "from a thread that goes on",
        "afterwards from the console",
    ]
    logged = (tmp_path / "run.log").read_text()
    for text in (
        "[transformers] a library's",
        "[torch.task] a library's in a task",
        "[vllm] a library's in a thread, too",
        "for the log",
    ):
        assert f"{text}\n" in logged


def test_an_exception_puts_everything_back(tmp_path):
    code = """
        before = len(os.listdir("/proc/self/fd"))
        for error in (RuntimeError("x"), KeyboardInterrupt(), SystemExit(3)):
            try:
                with quiet(log) as console:
                    print("hidden")
                    raise error
            except BaseException as exc:
                print("seen", type(exc).__name__)
            console.print("the console still speaks")
            os.write(2, b"and so does the descriptor\\n")
            print(len(os.listdir("/proc/self/fd")) - before)
    """
    done = run(code, tmp_path / "run.log")
    seen = [(f"seen {name}", "0") for name in ("RuntimeError", "KeyboardInterrupt", "SystemExit")]
    assert done.stdout.splitlines() == [line for pair in seen for line in pair]  # no descriptor is left open
    assert done.stderr.splitlines() == ["the console still speaks", "and so does the descriptor"] * 3


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "1>&- 2>&-"])
def test_a_program_started_without_output_runs_all_the_same(tmp_path, closed):
    code = "from pathlib import Path\nfrom overlap.record.logs import quiet\nimport os\n"
    code += f"with quiet(Path({str(tmp_path / 'run.log')!r})) as console:\n"
    code += "    print('hidden'); os.system('echo child; echo its stderr >&2'); console.print('said')\n"
    command = ["sh", "-c", f'"$0" -c "$1" {closed}', sys.executable, code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert set((tmp_path / "run.log").read_text().splitlines()) == {"hidden", "child", "its stderr", "said"}


def test_a_terminal_that_has_gone_away_does_not_end_the_run(tmp_path):
    code = """
        import signal
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        read, write = os.pipe()
        os.dup2(write, 2); os.close(write); os.close(read)
        with quiet(log) as console:
            console.print("nobody reads this")
            console.print("nor this")
        print("still here")
    """
    done = run(code, tmp_path / "run.log")
    assert (done.returncode, done.stdout) == (0, "still here\n")
    assert (tmp_path / "run.log").read_text() == "nobody reads this\nnor this\n"


def test_a_log_on_a_full_disk_loses_chatter_and_nothing_else():
    done = run(CHATTER.replace("os.write(1", "(lambda fd, text: None)(1"), Path("/dev/full"))
    assert done.returncode == 0, done.stderr
    assert "from the console" in done.stderr
    assert "afterwards on stdout" in done.stdout


def test_a_stderr_without_a_descriptor_stays_the_console(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", own := io.StringIO())
    with quiet(tmp_path / "run.log") as console:
        print("chatter", file=sys.stderr)
        console.print("for the reader")
    assert own.getvalue() == "for the reader\n"
    assert (tmp_path / "run.log").read_text() == "chatter\nfor the reader\n"
    assert sys.stderr is own
