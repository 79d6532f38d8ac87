"""A problem in sealed memory: written once, then handed from process to process as a descriptor.

    Problem ── write ──▶ descriptor, digest, bytes ── sendmsg ──▶ ... ── read ──▶ Problem

    texts of all cases │ head: the rest as JSON, with each text's length │ 8 bytes: where the head begins

The texts are UTF-8, neither escaped nor parsed, so megabytes of tests cost a copy and a checksum. The memory has no
name in any file system: no program can find it, no full disk matters, and it is gone with the last process that holds
it, however that ends. It is sealed before another process gets it, so what is read is what was hashed.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from sandbox.core.nouns import MIB
from sandbox.core.problem import Problem
from sandbox.kernel.linux import new_memfd, seal_memfd

_WHERE: Final = struct.Struct("!Q")
_SLICE: Final = MIB  # characters that are encoded at a time: encoding holds the interpreter, writing and hashing do not


@dataclass(frozen=True, slots=True)
class Written:
    """Identity of a written problem."""

    digest: str
    """Equal for problems that are judged alike."""
    size: int
    """Bytes of it in memory."""


class ProblemHandle:
    """One holder's descriptor of a written problem; closed with the last reference to it."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


def write(problem: Problem) -> tuple[ProblemHandle, Written]:
    """Raises OSError where there is no memory or no descriptor for it."""
    handle = ProblemHandle(new_memfd("problem"))
    with open(handle.fd, "wb", buffering=MIB, closefd=False) as file:
        writer = _Writer(file)
        cases = [
            {**case.to_json(), "input": writer.text(case.input), "expected": writer.text(case.expected)}
            for case in problem.cases
        ]
        start = writer.size
        writer.put(json.dumps({**problem.to_json(), "cases": cases}).encode())
        writer.put(_WHERE.pack(start))
    seal_memfd(handle.fd)
    return handle, Written(writer.digest.hexdigest(), writer.size)


def read_problem(handle: ProblemHandle) -> Problem:
    """Read a written problem; it validates itself once more. Raises InvalidProblem, ValueError."""
    size = os.fstat(handle.fd).st_size
    with mmap.mmap(handle.fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as memory, memoryview(memory) as view:
        (start,) = _WHERE.unpack(view[-_WHERE.size :])
        head = json.loads(bytes(view[start : -_WHERE.size]))
        reader = _Reader(view)
        cases = [
            {**case, "input": reader.text(case["input"]), "expected": reader.text(case["expected"])}
            for case in head["cases"]
        ]
    return Problem.from_json({**head, "cases": cases})


class _Writer:
    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.digest = hashlib.sha256()
        self.size = 0

    def text(self, text: str | None) -> int | None:
        """Return its length in bytes; None for no text."""
        if text is None:
            return None
        before = self.size
        for start in range(0, len(text), _SLICE):
            self.put(text[start : start + _SLICE].encode("utf-8", "surrogatepass"))
        return self.size - before

    def put(self, data: bytes) -> None:
        self.digest.update(data)
        self.file.write(data)
        self.size += len(data)


class _Reader:
    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.place = 0

    def text(self, size: Any) -> str | None:
        if size is None:
            return None
        start, self.place = self.place, self.place + size
        return str(self.view[start : self.place], "utf-8", "surrogatepass")
