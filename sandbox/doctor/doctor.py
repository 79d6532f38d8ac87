"""Find out what this machine can isolate. Each mechanism is tried in a process of its own; each failure names a repair.

PASS  user namespace
FAIL  landlock          ENOSYS ...     repair: boot a kernel of 5.13 or later with landlock in its lsm= list
tier  A
"""

from __future__ import annotations

import json
import os
import select
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from subprocess import PIPE, TimeoutExpired
from typing import Any, Final

from sandbox.build.builder import Builder
from sandbox.core.nouns import Case, Isolation, Limits, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.errors import SandboxError, Starved, ToolchainMissing, WorkerDied
from sandbox.jail.jail import TIERS, Jail
from sandbox.jail.spawn import start_process
from sandbox.judging import control
from sandbox.judging.control import in_fresh_jails
from sandbox.judging.judge import Judge
from sandbox.kernel import cgroup, landlock, linux, seccomp, uids
from sandbox.kernel.orphan_cleanup import reserve_directory
from sandbox.languages.language import Language
from sandbox.languages.table import LANGUAGES
from sandbox.pool.quotas import cores, memory_bytes, too_much_memory
from sandbox.zygote import namespaces

_PROBE_S: Final = 30.0
_PROBED: Final = 3  # times, before the machine is too slow to tell
_QUIET: Final = "ask again when this machine is less busy, or has more free memory"
_USERNS: Final = (
    "allow unprivileged user namespaces: sysctl -w user.max_user_namespaces=10000 "
    "kernel.apparmor_restrict_unprivileged_userns=0; in a container: --security-opt seccomp=unconfined"
)
_PROC: Final = "unmask /proc: docker run --security-opt systempaths=unconfined; Kubernetes procMount: Unmasked"
_CGROUP: Final = (
    "in a container of your own: mkdir /sys/fs/cgroup/all && echo $$ > /sys/fs/cgroup/all/cgroup.procs && "
    "echo '+memory +pids' > /sys/fs/cgroup/cgroup.subtree_control; else: systemd-run --scope -p Delegate=yes. Without "
    "one, the memory of many processes is watched by sampling"
)
_KERNEL: Final = "boot Linux 5.13 or later with landlock in the lsm= list; 6.12 or later to scope signals"
_PYTHON = "print(sum(map(int, input().split())))"
_CPP = '#include <cstdio>\nint main() { int a, b; std::scanf("%d %d", &a, &b); std::printf("%d\\n", a + b); }'


@dataclass(frozen=True, slots=True)
class Line:
    """One mechanism."""

    name: str
    passed: bool
    detail: str
    repair: str = ""
    needed: bool = True
    """False for a mechanism that is optional, or that serves one language."""


@dataclass(frozen=True, slots=True)
class Report:
    """All lines, and the tier that `auto` takes; None when there is none."""

    lines: tuple[Line, ...]
    tier: str | None


def examine() -> Report:
    """Try everything. Takes a few seconds, most of them for compilers. Raises Starved where nothing answers in time."""
    found = _probe()
    lines = [
        Line(name, not found.get(name, "no answer"), found.get(name, "no answer"), repair, needed)
        for name, (_, repair, needed) in _PROBES.items()
    ]
    tier: Isolation | None = None
    for name in TIERS:
        made = _jailed(
            f"tier {name}", name, lambda jail: (True, ", ".join(jail.mechanisms)), "see the FAIL lines above"
        )
        tier = tier or (name if made.passed else None)
        lines.append(made)
    lines.append(_memory())
    if tier is not None:
        lines += [_toolchain(tier, language) for language in LANGUAGES.values()]
    return Report(tuple(lines), tier)


def _memory() -> Line:
    """Return a line on whether the programs of a pool, a worker for each core, can have the memory of their limits."""
    told = too_much_memory(cores(), Limits().memory_bytes, has_bytes := memory_bytes())
    repair = "use fewer workers, a lower memory limit, or a container with more memory" if told else ""
    return Line("memory", not told, told or f"{has_bytes / 2**20:,.0f} MiB", repair, needed=False)


def _probe() -> dict[str, str]:
    """Return what `main` prints; empty where it crashes. Raises Starved."""
    for _ in range(_PROBED):
        process = start_process("doctor.doctor", [], [], stdout=PIPE)
        try:
            return dict(json.loads(process.communicate(timeout=_PROBE_S)[0] or b"{}"))
        except TimeoutExpired:
            process.kill()
            process.communicate()
    raise Starved(f"what is tried here did not answer within {_PROBE_S:g} s, {_PROBED} times; {_QUIET}")


def _toolchain(tier: Isolation, language: Language) -> Line:
    """Judge the sample program of a language in the tier that `auto` gives."""
    repair = f"install {language.package}" if language.package else "use another interpreter"

    def test(jail: Jail) -> tuple[bool, str]:
        return self_test(Judge(jail, Builder(os.path.join(jail.directory, "build"))), language)

    return _jailed(f"language {language.name}", tier, test, repair)


def _jailed(name: str, tier: Isolation, test: Callable[[Jail], tuple[bool, str]], repair: str) -> Line:
    """The outcome of a test in a jail of its own."""
    try:
        passed, detail = in_fresh_jails(test, tier)
    except SandboxError as error:
        passed, detail = False, str(error)
        repair = _QUIET if isinstance(error, Starved | WorkerDied) else repair
    return Line(name, passed, detail, "" if passed else repair, needed=False)


def main() -> None:
    """Probe each mechanism in a child process; print JSON in which an empty text means that it works."""
    print(json.dumps({name: _try(probe) for name, (probe, _, _) in _PROBES.items()}))


def _try(probe: Callable[[], None]) -> str:
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        text = ""
        try:
            probe()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(send, text.encode()[:4000])
        os._exit(0)
    os.close(send)
    with open(receive, encoding="utf-8", errors="replace") as stream:
        text = stream.read()
    status = os.waitpid(child, 0)[1]
    return text or (f"ended with status {status}" if status else "")


def _spaces(flags: int) -> Callable[[], None]:
    return lambda: linux.unshare(flags | (0 if os.geteuid() == 0 else linux.CLONE_NEWUSER))


def _mount_room() -> None:
    """Enter all namespaces of tier A, from the uid maps to the new root."""

    def enter() -> None:
        pid = namespaces.enter_namespaces()
        if pid == 0:
            namespaces.build_root(root, work_bytes=1 << 20)
        elif os.waitpid(pid, 0)[1]:
            raise OSError("pid 1 of the new namespace was killed")

    with tempfile.TemporaryDirectory() as root:  # who enters can no longer see it, and so could not remove it
        if fault := _try(enter):
            raise OSError(fault)


def _filter() -> None:
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    seccomp.install_filter()
    with suppress(PermissionError):
        linux.unshare(linux.CLONE_NEWUSER)
        raise AssertionError("the filter was loaded, but does not filter")


def _listener() -> None:
    """A forbidden call must be reported by name, and its caller stay stopped until it is killed."""
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    listener = seccomp.install_filter(report=True)
    if listener is None:
        raise OSError("the kernel has no listener for filters")
    child = os.fork()
    if child == 0:
        try:
            linux.unshare(linux.CLONE_NEWUSER)
        finally:
            os._exit(0)
    try:
        ready = select.select([listener], [], [], _PROBE_S / 3)[0]
        if not ready or seccomp.heard(listener) != "unshare":
            raise AssertionError("a forbidden call was not reported")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _landlock() -> None:
    ruleset = landlock.build(read=("/usr",), write=())
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    landlock.restrict(ruleset)
    with suppress(PermissionError):
        os.listdir("/etc")
        raise AssertionError("the rules were loaded, but have no effect")


def _scoped() -> None:
    if (version := landlock.abi()) < landlock.SIGNAL_SCOPE_ABI:
        raise OSError(f"Landlock ABI {version}; scoping signals needs {landlock.SIGNAL_SCOPE_ABI}")


def _second_uid() -> None:
    if os.geteuid() == 0 and uids.claim_uid() is None:
        raise OSError("root is the only uid in this container")


def _cgroup() -> None:
    name = f"{os.path.basename(reserve_directory())}.probe"
    group = cgroup.make(name)
    if group is None:
        raise OSError("no cgroup with memory and pids in which a group can be created")
    cgroup.remove_cgroups(name)


_PROBES: Final[dict[str, tuple[Callable[[], None], str, bool]]] = {
    "user namespace": (lambda: linux.unshare(linux.CLONE_NEWUSER), _USERNS, True),
    "pid namespace": (_spaces(linux.CLONE_NEWPID), _USERNS, True),
    "mount namespace": (_spaces(linux.CLONE_NEWNS), _USERNS, True),
    "ipc and uts namespace": (_spaces(linux.CLONE_NEWIPC | linux.CLONE_NEWUTS), _USERNS, True),
    "network namespace": (_spaces(linux.CLONE_NEWNET), _USERNS, True),
    "read-only root, /proc, private tmpfs": (_mount_room, _PROC, True),
    "unprivileged uid": (_second_uid, "give the container a second uid: --userns=auto, or /etc/subuid", True),
    "seccomp filter": (_filter, "use a kernel with CONFIG_SECCOMP_FILTER, on x86_64 or aarch64", True),
    "seccomp listener": (_listener, "use Linux 5.0 or later; without it forbidden calls fail, but are not SEC", False),
    "landlock": (_landlock, _KERNEL, True),
    "landlock signal scope": (_scoped, _KERNEL, False),
    "cgroup": (_cgroup, _CGROUP, False),
}


def self_test(judge: Judge, language: Language) -> tuple[bool, str]:
    """Return whether it passed, with the toolchain's version or what went wrong.

    Raises SandboxError (ToolchainMissing).
    """
    done = judge.judge(*control.sample(language))
    if done.verdict is Verdict.AC:
        return True, done.toolchain
    reason = done.compile_log or (done.cases[0].message if done.cases else "")
    return False, f"{done.toolchain}: its self-test ended with {done.verdict}: {reason.strip()[:300]}"


def measure_languages(isolation: Isolation = "auto", rounds: int = 30) -> dict[str, Any]:
    """Return {"tier", "rounds", "figures": [{"name", "ms", "note"}]}: "ms" is the median per program, or None where a
    toolchain is missing, and the note says which. Raises SandboxError when a benchmark program is not accepted.
    """
    figures: list[dict[str, Any]] = []

    def add(name: str, ms: float | None, note: str = "") -> None:
        figures.append({"name": name, "ms": ms, "note": note})

    start = time.perf_counter()
    with Jail(isolation) as jail:
        add("start a jail", (time.perf_counter() - start) * 1e3)
        judge = Judge(jail, Builder(f"{jail.directory}/build"))
        for tests in (1, 15):
            add(f"python, {tests} tests", _median_ms(judge, "python", _PYTHON, tests, rounds))
        try:
            add("c++, compile", _ms(judge, "cpp", _CPP, 1))
            for tests in (1, 15):
                add(f"c++ compiled, {tests} tests", _median_ms(judge, "cpp", _CPP, tests, rounds))
        except ToolchainMissing as error:
            add("c++", None, str(error))
        return {"tier": jail.tier, "rounds": rounds, "figures": figures}


def _median_ms(judge: Judge, language: str, source: str, tests: int, rounds: int) -> float:
    return statistics.median(_ms(judge, language, source, tests) for _ in range(rounds))


def _ms(judge: Judge, language: str, source: str, tests: int) -> float:
    start = time.perf_counter()
    cases = tuple(Case(f"{n} {n}\n", str(2 * n)) for n in range(tests))
    done = judge.judge(Problem("bench", "stdio", cases), Program(source, language))
    if done.verdict is not Verdict.AC:
        raise SandboxError(f"the benchmark's own {language} program was judged {done.verdict}: {done.compile_log}")
    return (time.perf_counter() - start) * 1e3
