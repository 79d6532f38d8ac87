"""What belongs to a run is gone after it, whatever happened to its driver; and nothing else is touched."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from engine_stub import wait_until
from places import ROOT
from starting import known

from overlap.process import process_tree
from overlap.process.process_tree import Pid, identify
from overlap.process.reaper import Reaper, sweep_run
from overlap.process.run_environment import RUN, shared_memory_names

SOON_S = 20.0
MINE = f"ovl-test-{os.getpid()}"


def driver(code: str) -> subprocess.Popen[str]:
    head = "import os, subprocess, sys; from pathlib import Path; from overlap.process.reaper import Reaper\n"
    head += "reaper = Reaper('ovl-' + str(os.getpid())).start()\n"
    command = [sys.executable, "-c", head + code]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout
    return process.stdout.readline().split()


def sleeper(env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"], env=env)


@pytest.mark.promise("nothing-left")
def test_after_sigkill_of_the_driver_its_processes_and_paths_are_gone(tmp_path: Path, bystander: Pid) -> None:
    scratch = tmp_path / "scratch"
    (scratch / "deep").mkdir(parents=True)
    (scratch / "deep" / "file").write_text("x")
    run = driver(f"""
watched = subprocess.Popen(["sh", "-c", "setsid sleep 600 & sleep 600"], env={{}})
env = os.environ | {{"OVERLAP_RUN": reaper.run}}
command = "setsid sleep 600 >/dev/null & echo $!"
orphan = subprocess.run(command, shell=True, stdout=-1, text=True, env=env).stdout.strip()
reaper.watch_pid(watched.pid)
reaper.watch_path(Path({str(scratch)!r}))
print(reaper._process.pid, watched.pid, orphan, flush=True)
input()
""")
    guard, watched, orphan = map(known, line(run))
    tree = [watched, *process_tree.list_descendants(watched.pid)]
    run.kill()
    assert process_tree.await_end([*tree, orphan, guard], SOON_S) == []
    run.communicate()
    assert not scratch.exists()
    assert tmp_path.exists()
    assert process_tree.alive(bystander)


def test_a_detached_one_outlives_the_children_of_its_driver_and_clears_up_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    run = driver(f"""
apart = Reaper("ovl-apart-" + str(os.getpid()), detached=True).start()
apart.watch_path(Path({str(tmp_path / "scratch")!r}))
print(reaper._process.pid, flush=True)
input()
""")
    (guard,) = map(known, line(run))
    assert process_tree.children(run.pid) == [guard]
    os.kill(guard.pid, signal.SIGKILL)
    run.kill()
    run.communicate()  # until the detached one has let go of its pipe, too
    wait_until(lambda: not (tmp_path / "scratch").exists())


def test_a_forked_child_that_holds_the_pipe_does_not_keep_the_reaper_waiting() -> None:
    run = driver("""
child = subprocess.Popen(["sleep", "600"])
reaper.watch_pid(child.pid)
forked = os.fork()
if not forked:
    import signal
    signal.pause()
import fcntl, termios
while any(fcntl.ioctl(reaper._process.stdin, termios.FIONREAD, bytes(4))):
    os.sched_yield()  # until the reaper has read that it has a child to watch: it then surely knows its driver
print(reaper._process.pid, child.pid, forked, flush=True)
input()
""")
    guard, child, forked = map(known, line(run))
    run.kill()
    assert process_tree.await_end([guard, child], SOON_S) == []
    assert process_tree.alive(forked)
    process_tree.kill_tree([forked], SOON_S)
    run.communicate()


@pytest.mark.promise("nothing-left")
@pytest.mark.parametrize("tracker_first", [False, True])
def test_shared_memory_of_a_killed_run_is_removed_also_when_its_resource_tracker_was_killed(
    tracker_first: bool,
) -> None:
    run = driver("""
code = '''
import sys
import tempfile
from multiprocessing import get_context, resource_tracker, shared_memory
from overlap.process.run_environment import name_shared
name_shared(sys.argv[1] + "-a1")
memory, lock = shared_memory.SharedMemory(create=True, size=64), get_context("spawn").Lock()
print(resource_tracker._resource_tracker._pid, flush=True)
input()
'''
env = os.environ | {"OVERLAP_RUN": reaper.run}
child = subprocess.Popen([sys.executable, "-c", code, reaper.run], stdin=-1, stdout=-1, text=True, env=env)
print(reaper._process.pid, reaper.run, child.stdout.readline(), flush=True)
input()
""")
    pid, name, tracker = line(run)
    guard = known(pid)
    assert sorted(entry.split("-a1")[0] for entry in shared_memory_names(name)) == [name, f"sem.{name}"]
    if tracker_first:
        os.kill(int(tracker), signal.SIGKILL)
    run.kill()
    assert process_tree.await_end([guard], SOON_S) == []
    assert shared_memory_names(name) == []
    run.communicate()


def test_close_ends_what_is_left(tmp_path: Path, bystander: Pid) -> None:
    other = sleeper(env={RUN: "another-run"})
    reaper = Reaper(MINE).start()
    watched, marked = sleeper(env={}), sleeper(env={RUN: MINE})
    reaper.watch_pid(watched.pid)
    (tmp_path / "socket").touch()
    reaper.watch_path(tmp_path / "socket")
    reaper.watch_path(tmp_path / "never made")
    reaper.close()
    assert (watched.wait(), marked.wait()) == (-signal.SIGKILL, -signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []
    assert process_tree.alive(bystander)
    assert other.poll() is None
    other.kill()
    other.wait()


def test_a_process_that_was_given_the_pid_of_a_watched_one_lives(
    bystander: Pid, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Reaper(MINE) as reaper, monkeypatch.context() as patch:
        patch.setattr(process_tree, "identify", lambda pid: Pid(pid, bystander.start - 1))
        reaper.watch_pid(bystander.pid)
    assert process_tree.alive(bystander)


def test_a_file_that_has_taken_the_place_of_a_watched_one_stays(tmp_path: Path) -> None:
    reaper = Reaper(MINE).start()
    for name in ("same", "newer", "changed"):
        (tmp_path / name).touch()
        reaper.watch_file(tmp_path / name)
    (tmp_path / "made").touch()
    os.replace(tmp_path / "made", tmp_path / "newer")
    os.chmod(tmp_path / "changed", 0o600)  # as another one that was given its inode
    reaper.close()
    assert {path.name for path in tmp_path.iterdir()} == {"newer", "changed"}


def test_signals_of_the_terminal_do_not_reach_the_reaper() -> None:
    child = sleeper(env={})
    reaper = Reaper(MINE).start()
    reaper.watch_pid(child.pid)
    process = reaper._process
    assert process
    assert os.getsid(process.pid) == process.pid != os.getsid(0)
    guard = known(process.pid)
    while not _ignores(guard.pid, signal.SIGTERM):
        assert process_tree.await_end([guard], 0.01) == [guard]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(guard.pid, number)
    reaper.close()
    assert (process.returncode, child.wait()) == (0, -signal.SIGKILL)


def _ignores(pid: int, number: int) -> bool:
    status = process_tree.read_proc(pid, "status").decode()
    mask = next(int(row.split()[1], 16) for row in status.splitlines() if row.startswith("SigIgn"))
    return bool(mask >> (number - 1) & 1)


def test_a_killed_reaper_is_stood_in_for_at_the_close(tmp_path: Path) -> None:
    reaper = Reaper(MINE).start()
    child = sleeper(env={RUN: MINE})
    assert reaper._process
    guard = known(reaper._process.pid)
    os.kill(guard.pid, signal.SIGKILL)
    assert process_tree.await_end([guard], SOON_S) == []
    (tmp_path / "file").touch()
    reaper.watch_path(tmp_path / "file")
    reaper.close()
    assert child.wait() == -signal.SIGKILL
    assert not (tmp_path / "file").exists()


def test_a_resource_tracker_of_the_living_driver_is_left_to_it() -> None:
    run = driver("""
from multiprocessing import resource_tracker
resource_tracker.ensure_running()
tracker = resource_tracker._resource_tracker._pid
reaper.close()
print(os.waitpid(tracker, os.WNOHANG), flush=True)
""")
    out, _ = run.communicate(timeout=SOON_S)
    assert out.strip() == "(0, 0)"


@pytest.mark.parametrize("path", ["/", "~", ".", "..", "/tmp"])
def test_directories_that_hold_more_than_the_run_are_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/tmp")
    with Reaper(MINE) as reaper, pytest.raises(ValueError, match="is inside it"):
        reaper.watch_path(Path(path).expanduser())


def test_a_tree_in_which_something_still_writes_is_removed_when_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, writes = tmp_path / "busy", iter(range(3))

    def remove(path: str) -> None:
        shutil.rmtree(path)
        if next(writes, None) is not None:  # a program of an agent, whose subreaper has not ended it yet
            busy.mkdir()

    monkeypatch.setattr("sandbox.kernel.clear.remove_tree", remove)
    busy.mkdir()
    sweep_run({str(busy)}, MINE, None)
    assert not busy.exists()


def test_names_of_any_bytes_are_removed(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"two words\nand \xff")
    odd.mkdir()
    with Reaper(MINE) as reaper:
        reaper.watch_path(odd)
    assert list(tmp_path.iterdir()) == []


def test_a_reaper_is_closed_twice_or_before_its_start_and_started_once() -> None:
    reaper = Reaper(MINE)
    reaper.close()
    with reaper:
        assert reaper._process
        guard = known(reaper._process.pid)
        with pytest.raises(RuntimeError, match="make a new one"):
            reaper.start()
    reaper.close()
    assert identify(guard.pid) != guard
    with pytest.raises(RuntimeError, match="does not run"):
        reaper.watch_path(Path("x"))
