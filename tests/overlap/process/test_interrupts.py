"""The first signal asks for an end in order; the second ends at once, unless something long was given up for it."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from places import ROOT

from overlap.process.interrupts import handle_interrupts, import_whole

HEAD = """
import asyncio, signal, sys, time
from overlap.process.interrupts import exit_code, handle_interrupts

def ready(text):
    print(text, flush=True)

async def hold():
    ready("waits")
    try:
        await asyncio.Event().wait()
    finally:
        ready("closes")
        await asyncio.shield(asyncio.to_thread(sys.stdin.readline))
        ready("closed")

def main(work, again=None):
    with handle_interrupts() as interrupts:
        try:
            work(interrupts, again)
        except KeyboardInterrupt as interrupt:
            return exit_code(interrupt)
"""
WORKS = {
    "plain": "def work(interrupts, again): asyncio.run(interrupts.run(hold, again))",
    "a loop that runs": """
def work(interrupts, again):
    import threading
    def target():
        try:
            asyncio.run(interrupts.run(hold, again))
        except KeyboardInterrupt:
            pass
    async def notebook():
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
        interrupts.check()
    asyncio.run(notebook())
""",
}


def start(work: str, again: str = "None") -> subprocess.Popen[str]:
    code = f"{HEAD}\n{WORKS[work]}\nsys.exit(main(work, {again}))"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, text=True, start_new_session=True, **pipes)
    assert line(process) == "waits"
    return process


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


@pytest.mark.promise("interrupts")
@pytest.mark.parametrize(
    ("work", "number", "code"),
    [
        ("plain", signal.SIGINT, 130),
        ("a loop that runs", signal.SIGINT, 130),
        ("plain", signal.SIGTERM, 143),
        ("plain", signal.SIGHUP, 129),
    ],
)
def test_the_first_signal_cancels_and_is_told_after_everything_was_closed(work: str, number: int, code: int) -> None:
    process = start(work)
    process.send_signal(number)
    assert line(process) == "closes"
    process.send_signal(number)  # at once: ``timeout`` and a shell send theirs twice
    out, err = process.communicate("\n", timeout=60)
    assert (process.returncode, out, err) == (code, "closed\n", "")


@pytest.mark.promise("interrupts")
def test_a_second_signal_ends_at_once_unless_something_was_given_up_for_it() -> None:
    process = start("plain", again="[False, True].pop")
    process.send_signal(signal.SIGINT)
    assert line(process) == "closes"
    slow = "import time; time.sleep(0.5)"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", slow], check=True)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    out, _ = process.communicate()
    assert out == ""


@pytest.mark.parametrize(("interactive", "codes"), [(False, [130]), (True, [])])
def test_a_second_signal_ends_a_program_but_no_interactive_interpreter(
    interactive: bool, codes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = list[int]()
    monkeypatch.setattr("overlap.process.interrupts._SAME_S", -1.0)
    monkeypatch.setattr("os._exit", ended.append)
    if interactive:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    with handle_interrupts() as interrupts, interrupts.held():
        interrupts.receive(signal.SIGINT, None)
        interrupts.receive(signal.SIGINT, None)
    assert ended == codes


def test_an_import_is_not_broken_off_by_a_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_made.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nwhole = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        import_whole("half_made", "wave")
    assert sys.modules["half_made"].whole
    assert "wave" in sys.modules


def test_a_signal_whose_exception_was_lost_ends_what_begins_after_it() -> None:
    begun = []

    def command() -> None:
        with handle_interrupts():
            with suppress(KeyboardInterrupt):  # as a callback of the interpreter loses it
                signal.raise_signal(signal.SIGTERM)
            with handle_interrupts():
                begun.append("it")

    with pytest.raises(KeyboardInterrupt, match=str(int(signal.SIGTERM))):
        command()
    assert begun == []
