"""What could not be written is reported once, and again at the end."""

from __future__ import annotations

import errno

import pytest

from overlap.core.errors import RunDirError
from overlap.record.write_failures import WriteFailures


def test_a_report_says_since_when_and_how_often():
    failures = WriteFailures()
    told: list[str] = []
    failures.add("trace.json", "No space left on device")
    failures.report_to(told.append)
    failures.step = 7
    for _ in range(2):
        with failures.tolerate_write_errors("events"):
            raise RunDirError("cannot write x: y") from OSError(errno.EROFS, "Read-only file system")
    assert told == [
        "trace.json is not being written: No space left on device; the run goes on without it",
        "events is not being written: Read-only file system; the run goes on without it",
    ]
    assert list(failures) == [
        "trace.json (No space left on device; 1 time from the start on)",
        "events (Read-only file system; 2 times from step 7 on)",
    ]


def test_what_is_wrong_with_the_program_is_not_tolerated():
    with pytest.raises(ValueError, match="a fault of ours"), WriteFailures().tolerate_write_errors("trace.json"):
        raise ValueError("a fault of ours")
