"""Whole or not at all: whatever fails, is cancelled or is killed on the way, a place holds the new or the former."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from overlap.core.errors import RunDirError
from overlap.process.atomic import (
    former_path,
    is_hidden_name,
    partial_path,
    replace,
    settle_path,
    sync,
    write_atomic,
)


def folder(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "file").write_text(text)
    return path


def names(path: Path) -> list[str]:
    return sorted(os.listdir(path))


@pytest.mark.promise("users-files")
def test_a_file_that_fails_to_be_written_keeps_its_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.json"
    write_atomic(path, "old")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunDirError, match=r"cannot write .*summary\.json: No space left on device; free disk space"):
        write_atomic(path, "new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["summary.json"]


def test_each_making_has_a_place_of_its_own_that_is_known_as_such(tmp_path: Path) -> None:
    policy = tmp_path / "policy"
    one, other = partial_path(policy), partial_path(policy)
    assert one != other
    hidden = [one, other, partial_path(one), former_path(policy)]
    assert all(path.parent == tmp_path and is_hidden_name(path.name, "policy") for path in hidden)
    assert not any(is_hidden_name(path.name, "policy-best") or is_hidden_name(path.name, "pol") for path in hidden)
    assert not any(is_hidden_name(name, "policy") for name in ("policy", ".policy", ".policy.partial", ".policy.1"))


def test_a_folder_takes_the_place_of_another_and_a_file_too(tmp_path: Path) -> None:
    new = folder(partial_path(tmp_path / "policy"), "new")
    sync(new)
    replace(new, tmp_path / "policy")
    replace(folder(partial_path(tmp_path / "policy"), "newer"), tmp_path / "policy")
    assert (tmp_path / "policy" / "file").read_text() == "newer"
    (tmp_path / "one").write_text("1")
    (tmp_path / "two").write_text("2")
    replace(tmp_path / "two", tmp_path / "one")
    assert (tmp_path / "one").read_text() == "2"
    assert names(tmp_path) == ["one", "policy"]


def test_a_folder_that_cannot_take_its_place_leaves_the_former_one_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = folder(tmp_path / "policy", "old")
    new = folder(partial_path(policy), "new")
    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(RunDirError, match=r"cannot write .*policy: Input/output error"):
        replace(new, policy)
    assert (policy / "file").read_text() == "old"
    assert names(tmp_path) == sorted(["policy", new.name])


def broken(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_what_a_kill_left_aside_comes_back_where_there_is_none_and_goes_where_there_is(tmp_path: Path) -> None:
    policy = tmp_path / "policy"
    folder(former_path(policy), "old")
    folder(partial_path(policy), "half")
    other = folder(former_path(tmp_path / "policy-best"), "another's")
    settle_path(policy)
    assert (policy / "file").read_text() == "old"
    folder(former_path(policy), "older")
    settle_path(policy)
    assert (policy / "file").read_text() == "old"
    assert names(tmp_path) == [other.name, "policy"]
    settle_path(tmp_path / "nowhere" / "policy")


def test_what_is_no_regular_file_is_not_replaced_and_behind_a_link_the_file_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to-pipe").symlink_to("pipe")
    folder(tmp_path / "folder", "old")
    before = names(tmp_path)
    for name in ("pipe", "to-pipe", "folder"):
        with pytest.raises(RunDirError, match=r"no regular file; name another place$"):
            write_atomic(tmp_path / name, "new")
    assert (tmp_path / "pipe").is_fifo()
    assert names(tmp_path) == before
    (tmp_path / "link").symlink_to("file")
    for text in ("first", "second"):
        write_atomic(tmp_path / "link", text)
        assert ((tmp_path / "file").read_text(), (tmp_path / "link").is_symlink()) == (text, True)
