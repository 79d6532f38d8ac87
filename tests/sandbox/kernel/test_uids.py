"""A jail's programs have a uid of their own, and what ends them cannot be stopped by them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from places import ROOT
from tiers import jail_of
from toolchains import is_installed, need

from sandbox.build.builder import Builder
from sandbox.core.nouns import Case, Limits, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.jail.jail import Jail
from sandbox.judging.judge import Judge
from sandbox.kernel import uids
from sandbox.languages import toolchain

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has uids to give")


tiered_jail = jail_of("B")


@pytest.fixture
def as_in_a_container(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Root of a user namespace with four uids beside its own."""
    held: list[object] = []
    monkeypatch.setattr(uids, "_held", held)
    monkeypatch.setattr(uids, "_mapped", lambda: [(0, 5)])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    yield
    for name in held:
        name.close()  # type: ignore[attr-defined]


@pytest.mark.promise("jails")
@pytest.mark.usefixtures("as_in_a_container")
def test_no_two_jails_share_a_uid_where_few_are_mapped_and_one_is_free_again_when_its_holder_is_gone() -> None:
    *claimed, last, none = (uids.claim_uid() for _ in range(5))
    assert {*claimed, last} == {1, 2, 3, 4}
    assert none is None
    uids._held.pop().close()
    assert uids.claim_uid() == last


@as_root
def test_who_ends_a_run_cannot_be_stopped_by_it() -> None:
    """As on a kernel that does not scope signals: nothing but the uid stands between the two."""
    code = """
        import os, signal, sys
        from sandbox.kernel import linux, uids
        from sandbox.zygote import watch
        linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
        uid, killer = uids.claim_uid(), uids.claim_uid()
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:
            os.setresuid(uid, uid, uid)
            os.write(writable, b"x")
            while True:
                try:
                    os.kill(-1, signal.SIGSTOP)
                except ProcessLookupError:
                    pass
        os.read(readable, 1)
        tribe = watch.uid_tribe(uid, killer if sys.argv[1] == "killer" else None)
        watch.end_all(tribe, watch.RunOutcome(), {child: True})
    """
    for how in ("killer", "searched"):
        argv = [sys.executable, "-c", textwrap.dedent(code), how]
        for _ in range(10):
            with subprocess.Popen(argv, cwd=ROOT, start_new_session=True) as process:
                try:
                    assert process.wait(20) == 0
                finally:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)


@as_root
def test_as_root_in_tier_b_no_program_keeps_a_capability(tiered_judge: Judge) -> None:
    """What lies in a directory of root's is not even seen to be there, and a library that does is imported from."""
    source = (
        "import os\nfor path in ('/root/.', '/proc/1/root/.'):\n    try:\n        os.stat(path)\n        print(path)\n"
        "    except OSError:\n        pass\n"
        "import concurrent.futures.thread, decimal, multiprocessing.pool, sqlite3, statistics, xml.dom.minidom\n"
        "print('ok')\n"
    )
    problem = Problem("p", "stdio", (Case("", "ok"),) * 3, limits=Limits(cpu_s=5, wall_s=60))
    done = tiered_judge.judge(problem, Program(source))
    assert done.verdict is Verdict.AC, done.cases
    if not is_installed("javascript"):
        return
    looks = "try { require('fs').statSync('/root/.'); console.log('seen') } catch (e) { console.log('ok') }"
    assert tiered_judge.judge(problem, Program(looks, "javascript")).verdict is Verdict.AC


@as_root
@pytest.mark.parametrize(
    ("language", "source"), [("python", "print('ok')"), ("c", '#include <stdio.h>\nint main(void) { puts("ok"); }')]
)
def test_as_root_a_program_runs_often_where_no_toolchain_is_closed_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language: str, source: str
) -> None:
    """Then a jail keeps no right to read what is closed, and a work directory is the program's alone."""
    need(language)
    monkeypatch.setattr(toolchain, "roots", lambda: ())
    problem = Problem("p", "stdio", (Case("", "ok"),) * 4, limits=Limits(cpu_s=5, wall_s=60))
    with Jail("B") as jail:
        done = Judge(jail, Builder(tmp_path / "builds")).judge(problem, Program(source, language))
    assert (done.verdict, done.passed) == (Verdict.AC, 4), done.compile_log
