"""A line is written whole or not at all, and a torn last line is left out."""

from __future__ import annotations

import errno
import os

import pytest

from overlap.core.errors import RunDirError
from overlap.record.json_lines import JsonLines, parse_json_lines, read_json_lines, size_until


def test_a_torn_last_line_is_left_out(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"step": 1}\n\n{"step": 2, "rew')
    assert read_json_lines(path) == [{"step": 1}]
    assert parse_json_lines(path.read_bytes()) == ([{"step": 1}], 13)
    assert read_json_lines(tmp_path / "none.jsonl") == []


def test_rows_of_later_steps_and_a_torn_line_lie_behind_a_step(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"step": 1}\n{"step": 1}\n{"step": 2}\n{"step": 3, "rew')
    assert [size_until(path, step) for step in (0, 1, 2, 9)] == [0, 24, 36, 36]
    assert size_until(tmp_path / "none.jsonl", 1) == 0


def test_a_line_that_does_not_fit_leaves_no_half_line(tmp_path, monkeypatch):
    lines = JsonLines(tmp_path / "rows.jsonl")
    lines.append({"step": 1})
    real, calls = os.write, []

    def nearly_full(fd: int, data: bytes) -> int:
        calls.append(data)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[:5])

    monkeypatch.setattr(os, "write", nearly_full)
    with pytest.raises(RunDirError, match=f"^cannot write {lines.path}: No space left on device; .*$") as caught:
        lines.append({"step": 2})
    assert caught.value.exit_code == 1
    monkeypatch.undo()
    lines.append({"step": 3})
    lines.close()
    lines.close()
    assert lines.path.read_text() == '{"step": 1}\n{"step": 3}\n'


def test_text_that_has_no_utf8_is_written_all_the_same(tmp_path):
    lines = JsonLines(tmp_path / "rows.jsonl")
    lines.append({"answer": "half a \ud83d pair"})
    assert read_json_lines(lines.path) == [{"answer": "half a \ud83d pair"}]
