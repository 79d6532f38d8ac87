"""Where this machine lets us make cgroups: the kernel holds all processes of a run to their limits together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from places import ROOT
from tiers import jail_of
from wide import wide

from sandbox.build.builder import Builder
from sandbox.core.nouns import MIB, Case, Limits, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.jail.jail import Jail
from sandbox.judging.judge import Judge
from sandbox.kernel import cgroup, orphan_cleanup
from sandbox.zygote import become_program, watch, zygote
from sandbox.zygote.confine import Confinement
from sandbox.zygote.inbox import AHEAD
from sandbox.zygote.source import PlacedSource

tiered_jail = jail_of("A", wide("B"))


def groups(prefix: str) -> set[str]:
    return {name for name in cgroup.other_names() if name.startswith(prefix)}


@pytest.fixture(scope="module")
def jail(tiered_jail: Jail) -> Jail:
    if not any(name.startswith("cgroup") for name in tiered_jail.mechanisms):
        pytest.skip("no cgroup here that we may make a group in")
    return tiered_jail


def verdict(jail: Jail, source: str, tmp_path: Path, limits: Limits) -> Verdict:
    problem = Problem("p", "stdio", (Case("", "done\n"),), limits=limits)
    return Judge(jail, Builder(str(tmp_path))).judge(problem, Program(source)).verdict


WANT_MEMORY = """
import os, time
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        held = b'x' * (40 << 20)
        time.sleep(30)
    children.append(pid)
ended, status = os.wait()
for pid in children:
    if pid != ended:
        os.kill(pid, 9)
os._exit(status)
"""
WANT_PROCESSES = """
import os, signal
children = []
try:
    while True:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        children.append(pid)
except OSError:
    for pid in children:
        os.kill(pid, 9)
    os._exit(len(children))
"""


@pytest.mark.promise("limits")
@pytest.mark.usefixtures("jail")
@pytest.mark.parametrize(
    ("source", "memory_bytes", "processes", "code", "is_killed"),
    [(WANT_MEMORY, 100 * MIB, 64, 9, True), (WANT_PROCESSES, 1 << 30, 8, 7, False)],
    ids=["memory", "processes"],
)
def test_the_kernel_holds_all_processes_of_a_group_to_its_limits_together(
    source: str, memory_bytes: int, processes: int, code: int, is_killed: bool
) -> None:
    name = orphan_cleanup._own_name()
    only_in_a_group = f"""
        import os
        from sandbox.kernel import cgroup
        group = cgroup.make({name!r})
        group.limit({memory_bytes}, {processes})
        child = os.fork()
        if child == 0:
            group.join()
            os.execv({sys.executable!r}, [{sys.executable!r}, "-S", "-c", {source!r}])
        print(os.WEXITSTATUS(os.waitpid(child, 0)[1]), *group.oom_count())
    """
    command = [sys.executable, "-c", textwrap.dedent(only_in_a_group)]
    found, kills, reached = map(int, subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.split())
    cgroup.remove_cgroups(name)
    assert found == code
    assert (kills >= 1, reached >= 1) == (is_killed, is_killed)


@pytest.mark.parametrize("how", ["signal.signal(signal.SIGCHLD, signal.SIG_IGN)", "unwaited()"])
def test_children_that_nobody_waits_for_are_charged(jail: Jail, tmp_path: Path, how: str) -> None:
    name = orphan_cleanup._own_name()
    group = cgroup.make(name)
    cgroup.remove_cgroups(name)
    if group is None or group._usage is None:
        pytest.skip("no group here counts CPU time")
    source = f"""
import ctypes, os, signal, struct, time
def unwaited():
    ctypes.CDLL(None).sigaction(signal.SIGCHLD, struct.pack('Q128siQ', 0, b'', 2, 0), None)
{how}
for _ in range(50):
    if os.fork() == 0:
        while time.process_time() < 0.02:
            pass
        os._exit(0)
    try:
        os.wait()
    except ChildProcessError:
        pass
print('done')
"""
    assert verdict(jail, source, tmp_path, Limits(cpu_s=0.3, wall_s=60)) is Verdict.TLE
    assert verdict(jail, source, tmp_path, Limits(cpu_s=10, wall_s=60)) is Verdict.AC


V1 = {"memory.oom_control": "under_oom 0\noom_kill {kills}\n", "memory.failcnt": "{reached}\n"}
V2 = {"memory.events": "low 0\nhigh 0\nmax 7\noom {reached}\noom_kill {kills}\noom_group_kill 0\n"}
GIVEN = (
    *("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.max", "memory.current"),
    *("pids.max", "cpuacct.usage", "cpu.stat"),
)


@pytest.mark.parametrize(("version", "counts"), [(1, V1), (2, V2)])
def test_a_group_tells_its_own_limit_from_one_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, counts: dict[str, str]
) -> None:
    def write(**numbers: int) -> None:
        for name, text in counts.items():
            (tmp_path / "group" / name).write_text(text.format(**numbers))

    (tmp_path / "group").mkdir()
    for name in GIVEN:
        (tmp_path / "group" / name).write_text("5\n")
    write(kills=0, reached=0)
    monkeypatch.setattr(cgroup.os, "mkdir", lambda path, mode: None)  # the kernel fills a new group with files
    group = cgroup.Cgroup(cgroup._Layout(version, (str(tmp_path),) * 3), "group")
    monkeypatch.undo()
    write(kills=3, reached=2)
    assert (group.oom_count(), group.usage()) == (cgroup.OomCount(3, 2), 5)


@pytest.mark.parametrize(
    ("after", "cause"),
    [((4, 9), None), ((3, 10), None), ((4, 10), "memory"), ((5, 9), "shortage")],
    ids=["no kill", "reclaimed", "its own limit", "others"],
)
def test_a_run_met_its_memory_limit_where_its_own_group_was_full(
    tmp_path: Path, after: tuple[int, int], cause: str | None
) -> None:
    asked: list[tuple[int, int]] = []
    counts = iter((cgroup.OomCount(4 if cause is None else 3, 9), cgroup.OomCount(*after)))
    worker = object.__new__(zygote.RequestLoop)
    worker.setting = become_program.ChildSetup(Confinement("B", str(tmp_path), None, None), {}, -1)
    group = SimpleNamespace(
        limit=lambda *limits: asked.append(limits), cpu_s=lambda: None, oom_count=lambda: next(counts)
    )
    worker.source = PlacedSource(str(tmp_path), lambda: None, keeps=True)
    worker.group, worker.spare_bytes = group, 7  # type: ignore[assignment]
    worker.watcher = SimpleNamespace(disk=None, watch=lambda *_: watch.RunOutcome(exit_code=0))  # type: ignore[assignment]
    sizes = {"memory_bytes": 1000, "stack_bytes": 30, "file_bytes": 1, "output_bytes": 1}
    request = {
        "files": [],
        "outputs": [],
        "limits": {**sizes, "processes": 3},
        "gather": None,
        "source": None,
        "series": (0, 0),
    }
    assert worker._attempt(request, [], lambda *_: None).cause == cause  # type: ignore[arg-type, return-value]
    assert asked == [(1000 + 30 + 4 + 3 * AHEAD + 7, 3 + zygote._OWN_PROCESSES)]


def test_a_jail_judges_on_after_a_limit_and_changes_it_with_the_problem(jail: Jail, tmp_path: Path) -> None:
    large = "x = bytearray(300 << 20)\nprint('done')\n"
    limits = [Limits(memory_bytes=size * MIB) for size in (128, 512, 128, 512)]
    assert [verdict(jail, large, tmp_path, limit).name for limit in limits] == ["MLE", "AC", "MLE", "AC"]


def test_the_group_goes_when_the_jails_owner_is_killed(jail: Jail) -> None:
    code = f"""
        import time
        from sandbox.jail.jail import Jail
        jail = Jail({jail.tier!r})
        print(jail.group, jail.process.pid, flush=True)
        time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        name, guard = owner.stdout.readline().split()
        guarding = psutil.Process(int(guard))
        assert groups(name)
        owner.kill()
    _, alive = psutil.wait_procs([guarding], timeout=20)
    assert not alive
    assert not groups(name)


def test_whoever_is_still_in_a_group_is_ended_when_it_is_removed(jail: Jail) -> None:
    name = orphan_cleanup._own_name()
    code = f"from sandbox.kernel import cgroup; cgroup.make({name!r}).join(); print(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=-1, stdout=-1) as member:
        assert member.stdout is not None
        assert member.stdout.readline()
        cgroup.remove_cgroups(name)
        assert not groups(name)
        assert member.wait(5) == -signal.SIGKILL


def test_the_group_of_a_dead_owner_is_swept_and_a_living_ones_is_not(jail: Jail) -> None:
    dead = f"{orphan_cleanup._PREFIX}{os.getpid():x}-1-{orphan_cleanup._namespace():x}-x.y"
    living = f"{orphan_cleanup._own_name()}.y"
    try:
        for name in (dead, living):
            assert cgroup.make(name) is not None
        orphan_cleanup.remove_orphans()
        assert not groups(dead)
        assert groups(living)
    finally:
        cgroup.remove_cgroups(dead)
        cgroup.remove_cgroups(living)


MOUNTS = {
    "two trees": "35 32 0:32 / /groups/memory rw - cgroup cgroup rw,memory\n"
    "40 32 0:36 / /groups/pids rw - cgroup cgroup rw,pids\n",
    "one tree": "41 31 0:38 / /groups rw,relatime - cgroup2 cgroup2 rw\n",
    "a container's part": "41 31 0:38 /docker/abc /groups rw - cgroup2 cgroup2 rw\n",
}


@pytest.mark.parametrize(
    ("mounts", "own", "version", "folders"),
    [
        ("two trees", "4:memory:/a/b\n8:pids:/\n", 1, ("/groups/memory/a/b", "/groups/pids")),
        ("two trees", "4:memory:/a/b\n", None, ()),
        ("one tree", "0::/a/b\n", 2, ("/groups/a",) * 3),
        ("one tree", "0::/\n", None, ()),
        ("a container's part", "0::/docker/abc/a/b\n", 2, ("/groups/a",) * 3),
    ],
)
def test_where_groups_can_be_made(
    monkeypatch: pytest.MonkeyPatch, mounts: str, own: str, version: int | None, folders: tuple[str, ...]
) -> None:
    """In v2 a group with processes hands no controller on: then it is the parent of the one that we are in."""
    texts = {"/proc/self/cgroup": own, "/proc/self/mountinfo": MOUNTS[mounts]}
    monkeypatch.setattr(cgroup, "_read", texts.__getitem__)
    monkeypatch.setattr(cgroup, "_hands_on", lambda folder: folder == "/groups/a")
    assert [(layout.version, layout.folders) for layout in cgroup._layouts()] == (
        [(version, folders)] if version else []
    )
