"""A machine without room for a jail."""

from __future__ import annotations

import errno
import select
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest
from starting import Held, refuse

from sandbox.errors import SandboxError
from sandbox.jail import tree
from sandbox.jail.jail import Jail


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
