"""A box whose commands have written their archive themselves: what is read of it is bounded, and of the box."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import tarfile
from collections.abc import Callable

import pytest

from sandbox.core.program_run import ProgramRun
from sandbox.errors import SandboxError
from sandbox.integrations.box import Box, _empty, _ended
from sandbox.integrations.box_program import ENDED, ERR, OUT, STATE

FINE = json.dumps({"code": 0, "timed_out": False, "cut": False, "error": ""}).encode()


def box_of(*entries: tuple[str, bytes, str]) -> Box:
    """A box with entries of a name, a type and where a link leads to."""
    with io.BytesIO() as packed:
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name, kind, to in entries:
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = kind, to
                entry.size = len(to) if kind == tarfile.REGTYPE else 0
                archive.addfile(entry, io.BytesIO(to.encode()))
        made = Box()
        made._state = packed.getvalue()
        return made


def read(box: Box, name: str) -> bytes:
    return asyncio.run(box.read(name))


def test_links_are_followed_within_the_box_and_no_further() -> None:
    link, file = tarfile.SYMTYPE, tarfile.REGTYPE
    box = box_of(
        ("./a/file", file, "x"), ("a/near", link, "file"), ("up", link, "a/near"), ("hard", tarfile.LNKTYPE, "a/file"),
        ("loop", link, "pool"), ("pool", link, "loop"), ("out", link, "/etc/passwd"), ("off", link, "../../etc/passwd"),
        ("pipe", tarfile.FIFOTYPE, ""), ("device", tarfile.CHRTYPE, ""),
    )  # fmt: skip
    assert [read(box, name) for name in ("a/file", "a/near", "up", "hard", "./a/../up")] == [b"x"] * 5
    for name in ("loop", "out", "off", "pipe", "device"):
        with pytest.raises(FileNotFoundError):
            read(box, name)


def test_an_entry_that_would_grow_when_it_is_read_is_no_file() -> None:
    box = box_of()
    entry = tarfile.TarInfo("bomb")
    entry.size = 1 << 40
    box._state = entry.tobuf(tarfile.GNU_FORMAT) + bytes(10_240)
    with pytest.raises((FileNotFoundError, SandboxError)):
        read(box, "bomb")
    for state in (b"no archive", gzip.compress(_empty())):
        box._state = state
        with pytest.raises(SandboxError, match="overwritten its box"):
            read(box, "bomb")


Change = Callable[[dict[str, bytes]], object]


@pytest.mark.parametrize(
    "change",
    [
        lambda files: files.pop(STATE),
        lambda files: files.update({ENDED: b"{"}),
        lambda files: files.update({ENDED: b"[]"}),
        lambda files: files.update({ENDED: FINE.replace(b": 0", b': "0"')}),
        lambda files: files.update({ENDED: FINE.replace(b"false", b"1")}),
        lambda files: files.update({STATE: b"no archive"}),
    ],
)
def test_how_a_command_ended_is_believed_only_where_it_is_whole(change: Change) -> None:
    files = {STATE: _empty(), OUT: b"", ERR: b"", ENDED: FINE}
    fine = ProgramRun("A", "python", "3.11", exit_code=0, files=tuple(files.items()))
    assert _ended(fine)[0]["code"] == 0
    change(files)
    with pytest.raises(SandboxError):
        _ended(ProgramRun("A", "python", "3.11", exit_code=0, files=tuple(files.items())))
