"""Our own processes start from anywhere: whatever other threads do to the environment meanwhile."""

from __future__ import annotations

import errno
import os
import select
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from starting import Held, refuse

from sandbox.errors import SandboxError
from sandbox.jail import Jail, tree
from sandbox.jail.spawn import start_process


def test_a_process_starts_while_another_thread_changes_the_environment() -> None:
    over = threading.Event()

    def change() -> None:
        number = 0
        while not over.is_set():
            number += 1
            os.environ[f"OVERLAP_TEST_{number % 50}"] = "x" * (number % 500)
            os.environ.pop(f"OVERLAP_TEST_{(number + 25) % 50}", None)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        started = [start_process("jail.no_such_module", [], []) for _ in range(30)]
        assert [process.wait(60) for process in started] == [1] * 30
    finally:
        over.set()
        thread.join()
        for name in [name for name in os.environ if name.startswith("OVERLAP_TEST_")]:
            del os.environ[name]


@pytest.mark.parametrize(
    ("owner", "name", "number", "way_out"),
    [
        (tree, "start_process", errno.EAGAIN, r"raise the limit on processes \(ulimit -u"),
        (socket, "socketpair", errno.EMFILE, r"raise the limit on open files \(ulimit -n\)"),
        (tempfile, "mkdtemp", errno.ENOSPC, "free space there, or set TMPDIR"),
        (select, "poll", errno.ENOMEM, "free memory"),
    ],
)
def test_a_jail_that_the_machine_has_no_room_for_is_our_fault_and_leaves_nothing(
    owner: Any, name: str, number: int, way_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Held()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, refuse(number, getattr(owner, name)))
        with pytest.raises(SandboxError, match=f"a jail cannot be started: .*; {way_out}"):
            Jail(run_dir=str(tmp_path))
        assert before.new() == set()
    assert not any(tmp_path.iterdir())
