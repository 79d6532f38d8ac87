"""A directory as bytes: what comes back is what was there, and hostile bytes write nothing elsewhere."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sandbox.session import _folder


def packed(folder: Path, bytes_max: int = 1 << 20) -> bytes:
    found = bytearray()
    _folder.pack(str(folder), bytes_max, found.extend)
    return bytes(found)


def test_files_directories_and_links_come_back_and_nothing_else(tmp_path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "a" / "empty").mkdir(parents=True)
    (source / "a" / "x").write_bytes(b"\0\n{}\xff")
    (source / "new\nline").write_text("odd name")
    (source / "link").symlink_to("a/x")
    os.mkfifo(source / "pipe")
    target.mkdir()
    _folder.unpack(packed(source), str(target))
    assert (target / "a" / "x").read_bytes() == b"\0\n{}\xff"
    assert (target / "new\nline").read_text() == "odd name"
    assert (target / "a" / "empty").is_dir()
    assert os.readlink(target / "link") == "a/x"
    assert not (target / "pipe").exists()


def test_what_does_not_fit_is_left_out(tmp_path) -> None:
    for name, size in (("a", 100), ("b", 2000), ("c", 100)):
        (tmp_path / name).write_bytes(b"x" * size)
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 40)
    (tmp_path / "target").mkdir()
    data = packed(tmp_path, 1000)
    _folder.unpack(data, str(tmp_path / "target"))
    assert sorted(path.name for path in (tmp_path / "target").iterdir()) == ["a", "c", "target"]


def entry(content: bytes = b"", **fields: object) -> bytes:
    return json.dumps(fields).encode() + b"\n" + content


@pytest.mark.parametrize(
    "data",
    [
        entry(b"x", name="../out", size=1),
        entry(b"x", name="/out", size=1),
        entry(b"x", name="a/../../out", size=1),
        entry(b"x", name="a\0b", size=1),
        entry(b"x", name="", size=1),
        entry(b"x", name="a", size=2),
        entry(b"x", name="a", size=-1),
        entry(b"x", name="a", size="1"),
        entry(name=["a"]),
        b"[]\n",
        b"not json\n",
        b'{"name": "a"',
        entry(name="l", link="../outside") + entry(name="l/x", link="y"),
    ],
)
def test_bytes_that_are_no_entries_or_lead_elsewhere_are_refused(tmp_path, data: bytes) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    target.mkdir()
    with pytest.raises((ValueError, OSError)):
        _folder.unpack(data, str(target))
    assert list(outside.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside", "target"]


def test_a_file_is_never_written_through_a_link(tmp_path) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.write_text("kept")
    target.mkdir()
    data = entry(name="l", link=str(outside)) + entry(b"x", name="l", size=1)
    with pytest.raises(OSError, match="File exists"):
        _folder.unpack(data, str(target))
    assert outside.read_text() == "kept"
