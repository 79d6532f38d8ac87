"""A machine without room for the pool's processes: one line with the way out, nothing left, and the next try works."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from pathlib import Path

import pytest
from pooling import RIGHT, SUM, pooled, run_directories, until
from starting import Held, refuse
from wide import wide

from sandbox import Pool, SandboxError, Verdict
from sandbox.pool import link

NO_ROOM = [
    wide("start", errno.EAGAIN, 0, r"raise the limit on processes \(ulimit -u"),
    ("start_process", errno.EAGAIN, 0, r"raise the limit on processes \(ulimit -u"),
    wide("reserve_directory", errno.ENOSPC, 0, r"free space there, or set TMPDIR"),
    wide("socketpair", errno.EMFILE, 0, r"raise the limit on open files \(ulimit -n\)"),
    ("socketpair", errno.EMFILE, 1, r"raise the limit on open files \(ulimit -n\)"),
]


@pytest.mark.parametrize(("name", "number", "after", "way_out"), NO_ROOM)
def test_a_supervisor_that_cannot_be_started_is_our_fault_and_leaves_nothing(
    name: str, number: int, after: int, way_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = {"socketpair": socket, "start": threading.Thread}.get(name, link)

    async def main() -> None:
        files, before = run_directories(), Held()
        pool = Pool(1, judge_once=False)
        with monkeypatch.context() as patch:
            fault = RuntimeError("can't start new thread") if name == "start" else None
            patch.setattr(owner, name, refuse(number, getattr(owner, name), after, fault))
            with pytest.raises(SandboxError, match=f"the sandbox cannot be started: .*; {way_out}"):
                await pool.judge(SUM, RIGHT)
            assert (run_directories(), before.new()) == (files, set())
        assert (await pool.judge(SUM, RIGHT)).verdict is Verdict.AC
        await pool.close()

    asyncio.run(main())


def test_a_supervisor_that_cannot_make_its_directory_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SandboxError, match=rf"cannot be started: Not a directory in {tmp_path}"):
        asyncio.run(Pool(1, directory=str(tmp_path / "file")).judge(SUM, RIGHT))


@pooled(1)
async def test_a_worker_that_cannot_be_started_is_told_with_its_cause(pool: Pool) -> None:
    assert pool._link is not None
    directory = Path(pool._link.directory)
    await until(directory.is_dir)
    (directory / "build").touch()  # where the worker wants a folder
    with pytest.raises(SandboxError, match=r"the builder cannot be started: File exists in .*build"):
        await pool.judge(SUM, RIGHT)
