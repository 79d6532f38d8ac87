"""Starts do not depend on what another thread does to the environment, and change nothing here."""

from __future__ import annotations

import ast
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeGuard

import pytest
from places import ROOT

from overlap.process.run_environment import child_environment, run_name

LOADING = "overlap/learner/zero/loading.py"
STARTS = 200
CHANGES = {"update", "pop", "clear", "setdefault", "putenv", "unsetenv"}


@contextmanager
def storm() -> Iterator[None]:
    """Another thread that sets and unsets variables."""
    over = threading.Event()

    def blow() -> None:
        while not over.is_set():
            for i in range(60):
                os.environ[f"OVERLAP_STORM_{i}"] = "x" * 200
            for i in range(60):
                del os.environ[f"OVERLAP_STORM_{i}"]

    thread = threading.Thread(target=blow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_start_with_an_environment_of_its_own_never_fails_while_another_thread_changes_ours() -> None:
    with storm():
        for _ in range(STARTS):  # without an environment of its own, some of them fail with EFAULT
            subprocess.run(["/bin/true"], env=child_environment(), check=True)


def test_every_start_in_the_engine_passes_an_environment() -> None:
    """And nothing in the driver's rooms sets a variable, changes the directory or the folder for temporary files."""
    without, changes = [], []
    for path in [*(ROOT / "overlap").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if _starts(node) and not any(k.arg == "env" for k in node.keywords):
                without.append(where)
            if _changes(node):
                changes.append(where)
    assert without == []
    actors = ("overlap/cluster/agent.py", "overlap/cluster/ray_process.py", "overlap/cluster/access.py")
    ranks = ("overlap/learner/rank.py", "overlap/learner/zero/", LOADING)
    own = ("overlap/generate/bind_to_parent.py", "overlap/generate/engine.py", *ranks, *actors)
    own += ("recipes/environments/_verifiers_host.py",)
    own += ("overlap/process/scratch.py",)  # for as long as a run has its directory
    assert [where for where in changes if not where.startswith(own)] == []  # processes of their own


def _starts(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("subprocess.Popen", "subprocess.run")


def _changes(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        owner, _, method = called.rpartition(".")
        return (owner in ("os.environ", "os") and method in CHANGES) or called in ("os.chdir", "signal.pthread_sigmask")
    if isinstance(node, ast.Assign | ast.Delete):
        texts = [ast.unparse(target) for target in node.targets]
        return any(text.startswith("os.environ[") or text == "tempfile.tempdir" for text in texts)
    return False


def test_the_environment_of_a_start_has_our_package_and_our_tools_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "here")
    monkeypatch.setenv("PATH", "/bin")
    made = child_environment(TMPDIR="/x")
    assert made["TMPDIR"] == "/x"
    assert made["PYTHONPATH"].split(":") == [str(ROOT), str(Path("here").absolute())]
    assert made["PATH"].endswith(":/bin")
    assert os.environ["PATH"] == "/bin"


@pytest.mark.promise("cluster-secrets")
def test_nothing_that_is_started_is_told_how_to_get_into_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    ways_in = {"RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
    for name in (*ways_in, "RAY_DEDUP_LOGS"):
        monkeypatch.setenv(name, "1")
    assert not ways_in & child_environment().keys()
    assert "RAY_DEDUP_LOGS" in child_environment()


def test_a_run_is_named_after_its_scratch_however_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_name(Path("s")) == run_name(tmp_path / "s") != run_name(tmp_path)
