"""A directory as bytes, and back: entries one after the other, each a line of JSON and the content that it announces.

    {"name": "a/b.txt", "size": 3}\nabc{"name": "c", "link": "a/b.txt"}\n{"name": "d"}\n        file, link, directory

A file with "run": true may be run.

Also sent as text, and run in a jail as the program whose directory it is: so that no other process goes through names
that a program chose, and nothing is written or read that the program may not. What it sends is not trusted.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

CHUNK = 1 << 20
FAILED = 3


def pack(folder: str, bytes_max: int, write: Callable[[bytes], object]) -> None:
    """Write the content of `folder`: directories before what they hold, links last, and no pipe, socket or device.

    Leaves out files beyond `bytes_max` in all, and what is too deep for a path.
    """
    links, waiting, left = [], [""], bytes_max
    while waiting:
        name = waiting.pop()
        path = os.path.join(folder, name)
        try:
            found = os.lstat(path)
            may_run = found.st_mode & 0o100
            if stat.S_ISLNK(found.st_mode):
                links.append((name, os.readlink(path)))
            elif stat.S_ISDIR(found.st_mode):
                with suppress(OSError):  # the directory itself may be another's
                    os.chmod(path, 0o700)
                waiting += [os.path.join(name, each) for each in sorted(os.listdir(path), reverse=True)]
            elif stat.S_ISREG(found.st_mode) and found.st_size <= left:
                os.chmod(path, 0o600 | may_run)
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            else:
                continue
        except OSError:  # it is too deep for a path
            continue
        if stat.S_ISDIR(found.st_mode) and name:
            write(_line(name=name))
        elif stat.S_ISREG(found.st_mode):
            left -= found.st_size
            write(_line(name=name, size=found.st_size, run=bool(may_run)))
            _write_content(fd, found.st_size, write)
    for name, target in links:
        write(_line(name=name, link=target))


def _write_content(fd: int, size: int, write: Callable[[bytes], object]) -> None:
    """Write as many bytes as were announced: the file may be shorter by now."""
    with open(fd, "rb", buffering=0) as file:
        while size and (data := file.read(min(CHUNK, size))):
            write(data)
            size -= len(data)
    write(bytes(size))


def _line(**entry: Any) -> bytes:
    return json.dumps(entry).encode() + b"\n"


def pack_texts(files: Mapping[str, bytes], programs: Collection[str] = ()) -> bytes:
    """Return bytes of which `unpack` makes these files. `programs`: names of files that may be run."""
    return b"".join(
        _line(name=name, size=len(content), run=name in programs) + content for name, content in files.items()
    )


def read_packed(data: bytes) -> tuple[dict[str, bytes], set[str]]:
    """Return the packed files, without links, and the names of files that may be run. Raises as `unpack` does."""
    files: dict[str, bytes] = {}
    programs = set()
    for name, entry, content in _entries(data):
        if content is not None:
            files[name] = content
            programs |= {name} if entry.get("run") is True else set()
    return files, programs


def unpack(data: bytes, folder: str) -> None:
    """Make what was packed below `folder`, where nothing else may write. Raises ValueError for bytes that are no such
    entries or lead elsewhere, OSError.
    """
    links = []
    for name, entry, content in _entries(data):
        path = os.path.join(folder, name)
        if content is not None:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            mode = 0o700 if entry.get("run") is True else 0o600
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as file:
                file.write(content)
        elif "link" in entry:
            links.append((str(entry["link"]), path))
        else:
            os.makedirs(path, exist_ok=True)
    home = os.path.realpath(folder)
    for target, path in links:  # no file is written any more that could go through one
        above = os.path.dirname(path)
        if os.path.realpath(above) != os.path.normpath(os.path.join(home, os.path.relpath(above, folder))):
            raise ValueError(f"name={path!r}: is behind a link")
        os.symlink(target, path)


def _entries(data: bytes) -> Iterator[tuple[str, dict[str, Any], bytes | None]]:
    """Name, entry, and the content of a file."""
    at = 0
    while at < len(data):
        end = data.index(b"\n", at)
        entry = json.loads(data[at:end])
        name, size = (entry["name"], entry.get("size")) if isinstance(entry, dict) else ("", None)
        if not isinstance(name, str) or "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
            raise ValueError(f"name={name!r}: must be a name inside the directory")
        at = end + 1
        if size is not None and not (isinstance(size, int) and 0 <= size <= len(data) - at):
            raise ValueError(f"size={size!r} of {name!r}: there are {len(data) - at} bytes")
        yield name, entry, None if size is None else data[at : at + size]
        at += size or 0


def read_file(path: str, bytes_max: int) -> bytes:
    """The content of a regular file. Raises OSError for another, and for one that is too long."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(fd, "rb", buffering=0) as file:
        kind = os.fstat(fd)
        if stat.S_ISDIR(kind.st_mode):
            raise OSError(errno.EISDIR, "")
        if not stat.S_ISREG(kind.st_mode):
            raise OSError(errno.EINVAL, "")
        if kind.st_size > bytes_max:
            raise OSError(errno.EFBIG, "")
        return file.read(bytes_max)


def put_file(path: str, content: bytes) -> None:
    """Make a file, or replace the content of one. Raises OSError."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o644)
    with open(fd, "wb") as file:
        file.write(content)


def main(what: str, *given: str) -> None:
    """Do one of these in the jail, in the working directory. Ends with FAILED, and the number of an OSError."""
    home = os.getcwd()  # a path that needs no permission of the directory itself
    stdin, write = sys.stdin.buffer, sys.stdout.buffer.write
    try:
        if what == "pack":
            pack(home, int(given[0]), write)
        elif what == "unpack":
            unpack(stdin.read(), home)
        elif what == "read":
            write(read_file(given[0], int(given[1])))
        else:
            put_file(given[0], stdin.read())
        sys.stdout.flush()
    except OSError as error:
        os.write(2, str(error.errno or 0).encode())
        os._exit(FAILED)


if __name__ == "__main__":
    main(*sys.argv[1:])
