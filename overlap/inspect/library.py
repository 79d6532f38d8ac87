"""A run for the page's requests: read once, and read on when its files have grown."""

from __future__ import annotations

import json
import threading
from typing import Any

from overlap.core.errors import ConfigError, error_reason
from overlap.inspect.page import json_text
from overlap.inspect.page_data import run_facts, run_lists
from overlap.inspect.run_data import RunData
from overlap.record.run_files import RunFile
from overlap.record.sample_file import SampleHead

Place = tuple[int, int, int]
"""Step, group, sample."""
_FILES = (RunFile.TRAJECTORIES, RunFile.GROUPS, RunFile.METRICS, RunFile.SUMMARY)
_NUMBERS = b', "token_ids": "'
"""Bytes of a row at which its texts end, and its numbers as base64 begin."""


class RunLibrary:
    """Answers for the page; its methods may be called by several threads."""

    def __init__(self, run: RunData) -> None:
        self.run = run
        self._lock = threading.Lock()
        self._revision = ""
        self._places: dict[Place, SampleHead] = {}
        self._facts, self._lists = "", ""

    def revision(self) -> str:
        """A text that is another one as soon as a file of the run has changed. Raises ConfigError."""
        paths = [self.run.samples.path, *(file.of(self.run.path) for file in _FILES[1:])]
        found = f"{'-'.join(map(_stamp, paths))}-{self.run.live:d}"
        with self._lock:
            if found != self._revision:
                self.run = self.run.again()
                heads = self.run.samples.heads()
                self._places = {(h.values["step"], h.values["group"], h.values["sample"]): h for h in heads}
                self._facts, self._lists, self._revision = "", "", found
        return found

    def facts(self) -> str:
        """``run_facts`` with the revision, as JSON."""
        revision = self.revision()
        with self._lock:
            self._facts = self._facts or json_text({**run_facts(self.run), "revision": revision})
            return self._facts

    def lists(self) -> str:
        """``run_lists``, as JSON."""
        self.revision()
        with self._lock:
            self._lists = self._lists or json_text(run_lists(self.run))
            return self._lists

    def sample(self, place: Place) -> dict[str, Any]:
        """A whole row. Raises ConfigError where none of that place is kept."""
        self.revision()
        if (head := self._places.get(place)) is None:
            raise ConfigError("sample", "{} g{}s{}".format(*place), "is not among the kept samples")
        return self.run.samples.row(head)

    def places_with(self, text: str) -> list[Place]:
        """The samples whose id, problem, prompt, answer, program, tests or messages contain ``text``, as it is
        written: found without parsing, 200 MB in a tenth of a second.
        """
        self.revision()
        wanted = json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "backslashreplace")
        found = []
        try:
            with self.run.samples.path.open("rb") as file:
                for place, head in self._places.items():
                    file.seek(head.offset)
                    if _has(file.read(head.size), wanted):
                        found.append(place)
        except OSError as error:
            path = str(self.run.samples.path)
            raise ConfigError("RUN", path, f"cannot be read ({error_reason(error)})") from error
        return found


def _has(row: bytes, wanted: bytes) -> bool:
    numbers = row.find(_NUMBERS)
    end, at = numbers if numbers >= 0 else len(row), row.find(wanted)
    while 0 <= at < end:
        behind = at + len(wanted)
        if not (row[at - 1 : at] == b'"' and row[behind : behind + 2] == b'":'):  # else it is the name of a field
            return True
        at = row.find(wanted, behind)
    return False


def _stamp(path: Any) -> str:
    """Bytes of a file, and when it was written last, ns: a run that went back may have written as many bytes again."""
    try:
        found = path.stat()
    except OSError:
        return ""
    return f"{found.st_size:x}.{found.st_mtime_ns:x}"
