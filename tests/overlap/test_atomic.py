"""Whole or not at all: whatever fails, is cancelled or is killed on the way, a place holds the new or the former."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from overlap.atomic import (
    former_path,
    is_hidden_name,
    partial_path,
    replace,
    settle,
    sync,
    threaded,
    to_its_end,
    write_atomic,
)
from overlap.errors import RunDirError


def folder(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "file").write_text(text)
    return path


def names(path: Path) -> list[str]:
    return sorted(os.listdir(path))


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
    settle(policy)
    assert (policy / "file").read_text() == "old"
    folder(former_path(policy), "older")
    settle(policy)
    assert (policy / "file").read_text() == "old"
    assert names(tmp_path) == [other.name, "policy"]
    settle(tmp_path / "nowhere" / "policy")


def test_a_cancellation_is_raised_when_the_work_has_ended() -> None:
    entered, release, done = threading.Event(), threading.Event(), []

    def work() -> None:
        entered.set()
        assert release.wait(20)
        done.append(True)

    async def main() -> None:
        task = asyncio.create_task(to_its_end(work))
        assert await asyncio.to_thread(entered.wait, 20)
        for _ in range(2):
            task.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
            assert not task.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == [True]

    asyncio.run(main())


def test_work_that_is_not_cancelled_gives_its_result_or_its_error() -> None:
    async def main() -> None:
        assert await to_its_end(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await to_its_end(divmod, 7, 0)

    asyncio.run(main())


@contextmanager
def noted(said: list[str], *, fails: bool = False) -> Iterator[str]:
    said.append(f"begun in {'the loop' if threading.current_thread() is threading.main_thread() else 'a thread'}")
    if fails:
        raise RunDirError("no place")
    try:
        yield "value"
    except BaseException as error:
        said.append(f"broken by {type(error).__name__}")
        raise
    else:
        said.append("ended")


def test_a_context_in_threads_begins_ends_and_breaks_as_it_would_without() -> None:
    async def within(said: list[str], error: BaseException | None = None, **how: bool) -> None:
        async with threaded(noted(said, **how)) as value:
            assert value == "value"
            if error is not None:
                raise error

    said: list[str] = []
    asyncio.run(within(said))
    assert said == ["begun in a thread", "ended"]
    for error in (RunDirError("full"), asyncio.CancelledError()):
        said.clear()
        with pytest.raises(type(error)):
            asyncio.run(within(said, error))
        assert said == ["begun in a thread", f"broken by {type(error).__name__}"]
    said.clear()
    with pytest.raises(RunDirError, match="no place"):
        asyncio.run(within(said, fails=True))
    assert said == ["begun in a thread"]


def test_a_context_whose_begin_is_cancelled_is_ended_all_the_same() -> None:
    said: list[str] = []
    entered, go_on = threading.Event(), threading.Event()

    @contextmanager
    def slow() -> Iterator[None]:
        entered.set()
        go_on.wait(10)
        with noted(said):
            yield

    async def within() -> None:
        async with threaded(slow()):
            raise AssertionError("must not be reached")

    async def main() -> None:
        task = asyncio.create_task(within())
        await asyncio.to_thread(entered.wait, 10)
        task.cancel()
        asyncio.get_running_loop().call_soon(go_on.set)
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    assert said == ["begun in a thread", "broken by CancelledError"]
