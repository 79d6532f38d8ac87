"""Processes end with their parents, and trees of processes end whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_stub import wait_until
from places import ROOT
from starting import known

from overlap.process import process_tree
from overlap.process.process_tree import Pid, identify

SOON_S = 20.0


_started: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    """What a failed test leaves fails no other."""
    yield
    while _started:
        finish(_started.pop())


def python(code: str) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    _started.append(subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, text=True, **pipes))
    return _started[-1]


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def finish(process: subprocess.Popen[str]) -> None:
    if process.returncode is None:
        process.kill()
        process.communicate()


CHILD = "import os, sys; from overlap.process.process_tree import bind_to_parent; bind_to_parent(int(sys.argv[1]));"


def test_a_bound_process_outlives_the_thread_that_started_it() -> None:
    child = f"{CHILD} print('born', flush=True); print(input(), flush=True)"
    parent = python(f"""
import os, subprocess, sys, threading
children = []
def start():
    args = [sys.executable, "-c", {child!r}, str(os.getpid())]
    children.append(subprocess.Popen(args, stdin=-1, stdout=-1, text=True))
    children[0].stdout.readline()
thread = threading.Thread(target=start)
thread.start()
thread.join()
print(children[0].communicate("alive")[0], children[0].returncode)
""")
    out, _ = parent.communicate(timeout=SOON_S)
    assert out.split() == ["alive", "0"]


def test_binding_to_a_process_that_is_gone_ends_this_one_at_once() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    child = subprocess.run([sys.executable, "-c", f"{CHILD} print('lived')", str(gone.pid)], cwd=ROOT, stdout=-1)
    assert child.returncode == -signal.SIGKILL
    assert child.stdout == b""


def test_binding_to_a_pid_that_was_used_again_ends_this_process() -> None:
    child = python("import time; from overlap.process.process_tree import bind_to_parent; bind_to_parent(int(input()))")
    before = known(child.pid).start
    while True:  # a process that is surely younger, by the clock of start times
        younger = subprocess.Popen(["sleep", "600"])
        if known(younger.pid).start > before:
            break
        younger.kill()
        younger.wait()
    child.communicate(f"{younger.pid}\n", timeout=SOON_S)
    younger.kill()
    younger.wait()
    assert child.returncode == -signal.SIGKILL


@pytest.mark.promise("nothing-left")
def test_a_bound_process_ends_when_its_parent_is_killed_and_takes_its_children_and_its_group_along() -> None:
    child = f"""{CHILD}
import signal, subprocess
os.setsid()
own = subprocess.Popen(["sleep", "600"], start_new_session=True)
orphan = subprocess.run("sleep 600 >/dev/null & echo $!", shell=True, stdout=-1, text=True).stdout.strip()
print(os.getpid(), own.pid, orphan, flush=True)
signal.pause()
"""
    parent = python(f"import os, subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}, str(os.getpid())])")
    processes = [known(pid) for pid in line(parent).split()]
    finish(parent)
    assert process_tree.await_end(processes, SOON_S) == []


def test_a_bound_process_that_leaves_while_its_watching_thread_kills_leaves_no_stopped_child() -> None:
    child = f"""{CHILD}
import subprocess, threading
from overlap.process import process_tree; from overlap.process.process_tree import leave
stopped, send = threading.Event(), process_tree._send
def send_and_stand_still(fd, number):
    send(fd, number)
    if threading.current_thread().name.startswith("parent-watch"):
        stopped.set()
        threading.Event().wait()
process_tree._send = send_and_stand_still
print(os.getpid(), *(subprocess.Popen(["sleep", "600"], stdout=-3).pid for _ in range(3)), flush=True)
sys.stdin.read()
stopped.wait()
leave(3)
"""
    parent = python(f"""
import os, subprocess, sys
subprocess.run([sys.executable, '-c', {child!r}, str(os.getpid())], stdin=subprocess.PIPE)
""")
    processes = [known(pid) for pid in line(parent).split()]
    finish(parent)
    assert process_tree.await_end(processes, SOON_S) == []


def test_leaving_ends_with_the_code_and_ends_the_children_though_the_parent_lives() -> None:
    child = f"{CHILD} import subprocess; from overlap.process.process_tree import leave;"
    child += " print(subprocess.Popen(['sleep', '600'], stdout=2).pid, flush=True); leave(3)"
    left = subprocess.run([sys.executable, "-c", child, str(os.getpid())], cwd=ROOT, stdout=-1, timeout=SOON_S)
    assert left.returncode == 3
    child_of_it = identify(int(left.stdout))
    assert child_of_it is None or not process_tree.alive(child_of_it)


def test_a_tree_is_killed_whole_and_its_root_is_reaped(bystander: Pid) -> None:
    root = subprocess.Popen(["sh", "-c", "setsid sleep 600 & sleep 600 & echo; wait"], stdout=subprocess.PIPE)
    assert root.stdout
    root.stdout.readline()
    tree = [known(root.pid), *process_tree.list_descendants(root.pid)]
    assert len(tree) == 3
    assert process_tree.kill_tree([root.pid], SOON_S) == ()
    assert not any(map(process_tree.alive, tree))
    assert identify(root.pid) != tree[0]
    assert process_tree.alive(bystander)
    root.stdout.close()
    root.wait()


def test_a_tree_that_forks_while_it_is_killed_leaves_nobody() -> None:
    mark = f"OVERLAP_TEST={uuid.uuid4().hex}"
    name, value = mark.split("=")
    loop = "i=0; while [ $i -lt 3000 ]; do sh -c 'sleep 600 & sleep 600' & i=$((i+1)); [ $i = 20 ] && echo; done"
    root = subprocess.Popen(["sh", "-c", loop], env={**os.environ, name: value}, stdout=subprocess.PIPE)
    assert root.stdout
    root.stdout.readline()
    assert len(process_tree.marked(mark)) >= 10
    assert process_tree.kill_tree([root.pid], SOON_S) == ()
    assert [process for process in process_tree.marked(mark) if process_tree.alive(process)] == []
    root.stdout.close()
    root.wait()


def test_a_pid_that_was_used_again_is_not_killed(bystander: Pid) -> None:
    assert process_tree.kill_tree([Pid(bystander.pid, bystander.start - 1)], 1.0) == ()
    assert process_tree.alive(bystander)


def test_this_process_and_pid_1_are_never_killed() -> None:
    assert process_tree.kill_tree([os.getpid(), 1], 1.0) == ()


def test_a_resource_tracker_outlives_the_killed_and_removes_their_shared_memory() -> None:
    owner = python("""
from multiprocessing import resource_tracker, shared_memory
memory = shared_memory.SharedMemory(create=True, size=64)
print(memory.name, resource_tracker._resource_tracker._pid, flush=True)
input()
""")
    name, pid = line(owner).split()
    tracker = known(pid)
    wait_until(lambda: process_tree.is_tracker(tracker.pid))  # until its exec it is like any other descendant
    assert Path("/dev/shm", name).exists()
    assert process_tree.kill_tree([owner.pid], SOON_S) == ()
    assert process_tree.await_end([tracker], SOON_S) == []
    assert not Path("/dev/shm", name).exists()
    owner.communicate()


def test_the_living_are_told_from_zombies_and_strangers(bystander: Pid) -> None:
    child = subprocess.Popen(["true"])
    zombie = known(child.pid)
    assert process_tree.await_end([zombie], SOON_S) == []
    assert identify(child.pid) == zombie
    assert not process_tree.alive(zombie)
    child.wait()
    assert process_tree.alive(bystander)
    assert not process_tree.alive(Pid(bystander.pid, bystander.start + 1))
    assert process_tree.await_end([bystander], 0.0) == [bystander]


def test_a_process_in_the_middle_of_its_start_is_found_by_its_mark(tmp_path: Path) -> None:
    mark = f"OVERLAP_TEST_MARK={uuid.uuid4().hex}"
    name, _, value = mark.partition("=")
    (restless := tmp_path / "restless").write_text('#!/bin/sh\nexec "$0"\n')  # starts itself anew for ever
    restless.chmod(0o700)
    with subprocess.Popen([restless], env={"PATH": os.environ["PATH"], name: value}) as started:
        found = [process_tree.marked(mark) for _ in range(200)]
        started.kill()
    assert [processes for processes in found if [it.pid for it in processes] != [started.pid]] == []


def test_names_with_brackets_and_spaces_are_read_right(tmp_path: Path) -> None:
    odd = tmp_path / "a) S 1 (b"
    odd.symlink_to("/bin/sleep")
    process = subprocess.Popen([str(odd), "600"])
    assert Pid(process.pid, known(process.pid).start) in process_tree.children(os.getpid())
    process_tree.kill_tree([process.pid], SOON_S)
    process.wait()
