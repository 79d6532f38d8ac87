"""One life: many wait, the first cause stays, nothing is left."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from array import array
from pathlib import Path
from typing import Any, NoReturn

import pytest
from places import ROOT, SUPPORT

from overlap.core.errors import EngineError
from overlap.process.calls import Peer, RemoteCall, RemoteFault, encode_message, receive_message
from overlap.process.child_processes import ChildProcesses, is_vague, log_hint
from overlap.process.process_tree import alive, identify
from overlap.process.run_environment import run_name, shared_memory_names

PAUSE = "import signal; signal.pause()"


@pytest.fixture
def life(tmp_path: Path) -> ChildProcesses:
    return ChildProcesses("engine", EngineError, tmp_path, tmp_path / "log")


async def wait(life: ChildProcesses) -> None:
    with life.guard():
        await asyncio.Event().wait()


async def test_a_death_wakes_all_who_wait_with_its_cause_and_the_last_error_of_the_log(
    life: ChildProcesses, tmp_path: Path
) -> None:
    process = life.spawn("the engine process", ["-c", PAUSE], {})
    (tmp_path / "log").write_text("fine\nRuntimeError: out of memory\nbye\n")
    waits = [asyncio.create_task(wait(life)), asyncio.create_task(life.wait_dead())]
    await asyncio.sleep(0)
    process.kill()
    for end in waits:
        with pytest.raises(EngineError, match=r"was killed by signal 9 \(SIGKILL\); see .*log: RuntimeError: out of"):
            await end
    with pytest.raises(EngineError, match="signal 9"):
        life.check()


async def test_of_two_ends_the_better_cause_is_told(life: ChildProcesses) -> None:
    life.fail_soon("a connection was lost")
    life.fail("it was killed by signal 9")
    life.fail("too late")
    with pytest.raises(EngineError, match="signal 9"):
        await life.wait_dead()


async def test_what_a_process_said_is_told_rather_than_how_it_ended(life: ChildProcesses) -> None:
    """Its end may be noticed before its last words are read."""
    life.fail_soon("exited with code 1")
    life.fail_soon(EngineError("out of memory"), said=True)
    life.fail_soon(EngineError("lost a connection"), said=True)
    with pytest.raises(EngineError, match="out of memory"):
        await life.wait_dead()


async def test_a_process_that_cannot_be_started_ends_the_life_with_its_place_and_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    life = ChildProcesses("engine", EngineError, tmp_path / "file")
    told = r"the process cannot be started: Not a directory: .*/file/.*; free space there or choose another place"
    for _ in range(2):
        with pytest.raises(EngineError, match=told):
            life.spawn("the process", ["-c", PAUSE], {})
    with pytest.raises(EngineError, match=told):
        await life.wait_dead()
    await life.close()


async def test_closing_kills_also_what_was_stopped_or_left_its_parent_and_removes_what_was_shared(
    life: ChildProcesses,
) -> None:
    code = (
        "import os, subprocess, sys, time\n"
        "from multiprocessing.shared_memory import SharedMemory\n"
        "from overlap.process.run_environment import name_shared\n"
        "name_shared(os.environ['OVERLAP_LIFE'])\n"
        "memory = SharedMemory(create=True, size=64)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'], start_new_session=True)\n"
        "os.kill(child.pid, 19)\n"
        "open('ready', 'w').write(str(child.pid))\n"
        "os._exit(3) if sys.argv[1] == 'leave' else time.sleep(600)\n"
    )
    process = life.spawn("the engine process", ["-c", code, "leave"], {})
    with pytest.raises(EngineError, match="exited with code 3"):
        await life.wait_dead()
    child = identify(int((life.folder / "ready").read_text()))
    assert child is not None
    assert alive(child)
    folder = life.folder
    await life.close()
    assert process.poll() == 3
    assert not alive(child)
    assert not folder.exists()
    assert shared_memory_names(run_name(folder.parent)) == []


async def test_two_lives_in_one_scratch_end_each_alone(life: ChildProcesses, tmp_path: Path) -> None:
    other = ChildProcesses("engine", EngineError, tmp_path)
    first, second = (each.spawn("the engine process", ["-c", PAUSE], {}) for each in (life, other))
    assert life.pids() == (first.pid,)
    await life.close()
    assert second.poll() is None
    assert other.folder.is_dir()
    await other.close()
    assert os.listdir(tmp_path) == ["log"]


async def test_a_task_that_is_cancelled_as_the_life_ends_stays_cancelled(life: ChildProcesses) -> None:
    task = asyncio.create_task(wait(life))
    await asyncio.sleep(0)
    life.fail("it died")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_calls_cross_side_by_side_errors_come_back_and_a_call_can_be_cancelled(life: ChildProcesses) -> None:
    environment = {"PYTHONPATH": f"{ROOT}{os.pathsep}{SUPPORT}"}
    peer = await Peer.start(life, "the engine process", "far_child", environment)
    slow = asyncio.create_task(peer.call("hang"))
    assert await asyncio.gather(peer.call("add", 1, 2), peer.call("add", "a", "b")) == [3, "ab"]
    with pytest.raises(RemoteFault, match=r"AttributeError: .* no attribute 'fail'"):
        await peer.call("fail")
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    assert (await peer.call("state"))["taken_back"]
    with pytest.raises(EngineError, match="was killed by signal 9"):
        await peer.call("die", "")
    await life.close()
    await peer.close()


def test_messages_arrive_whole_and_in_order() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for number in range(3):
            ours.sendall(encode_message(RemoteCall(number, "step", (array("i", range(100)),))))
        ours.sendall(encode_message(RemoteCall(3, "step"))[:-1])
        ours.close()
        with theirs.makefile("rb") as stream:
            assert [receive_message(stream).number for _ in range(3)] == [0, 1, 2]
            for _ in range(2):  # cut short, and nothing more
                with pytest.raises(EOFError):
                    receive_message(stream)


@pytest.mark.parametrize(
    ("lines", "hint"),
    [
        (["ValueError: no cores", "RuntimeError: Engine core failed. See root cause above."], "no cores"),
        (["OSError: first", "KeyError: last"], "KeyError: last"),
        (["RuntimeError: see root cause above"], "see root cause above"),
    ],
)
def test_a_hint_names_the_cause_and_no_line_that_only_points_to_it(lines: list[str], hint: str, tmp_path: Path) -> None:
    (log := tmp_path / "run.log").write_text("".join(f"(EngineCore pid=7) ERROR {line}\n" for line in lines))
    assert log_hint(log).startswith(f"; see {log}: ")
    assert log_hint(log).endswith(hint)
    assert [is_vague(line) for line in lines][-1] == ("root cause" in lines[-1])


def test_a_death_whose_log_cannot_be_read_is_reported_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor(*args: Any) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    (log := tmp_path / "run.log").touch()
    life = ChildProcesses("engine", EngineError, tmp_path, log)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", no_descriptor)
        life.died("its process", -9)
    with pytest.raises(EngineError, match=r"its process was killed by signal 9 \(SIGKILL\); see .*run.log"):
        life.check()
