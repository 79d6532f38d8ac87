"""Sets in the words of the judges that they were taken from: public, private and official tests, checkers, limits.

LiveCodeBench       {question_content, public_test_cases}      also code_generation_lite
CodeContests        {description, public_tests}                deepmind/code_contests
CodeContests+       {description, test_cases}                  ByteDance-Seed/Code-Contests-Plus
Codeforces          {description, official_tests}              open-r1/codeforces
"""

from __future__ import annotations

import base64
import io
import pickle
import pickletools
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from overlap.rows.row import SourceRow
from recipes.code_rl.cases import Judging, distinct, refuse_files
from recipes.code_rl.core import REFERENCES_KEPT, UNJUDGEABLE, CodeProblem
from recipes.code_rl.formats_contest import LIVECODEBENCH, contest
from recipes.code_rl.shapes import pairs_of, stdio_cases
from sandbox.core.nouns import MIB, Program
from sandbox.core.plain import plain_value

_PYTHON3 = 3
"""Python 3 in CodeContests' numbers for the languages of solutions: 1 Python 2, 2 C++, 3 Python 3, 4 Java."""
_HEADER_FOLDERS = ("/usr/include", "/usr/local/include")
UNPACKED_MAX = 256 * MIB
"""Bytes of a row's packed tests."""


def read_livecodebench(row: SourceRow, judging: Judging) -> CodeProblem:
    """Public and private tests; the private ones may be packed (JSON, pickled, zlib, base64)."""
    statement, shown = row.text("question_content"), _listed(row, "public_test_cases")
    tests = [*shown, *_listed(row, "private_test_cases")]
    made = contest(row, judging, statement, tests, compare=LIVECODEBENCH)
    return replace(made, public=contest(row, judging, statement, shown).problem.cases if shown else ())


def _listed(row: SourceRow, name: str) -> list[Any]:
    text = row.values.get(name)
    found = unpacked(row, name, text) if isinstance(text, str) and text.strip() else text
    if found in (None, ""):
        return []
    if not isinstance(found, list):
        raise row.fault(found, f"{name} must be a list of tests")
    return found


def unpacked(row: SourceRow, name: str, text: str) -> Any:
    """JSON, or JSON that was pickled, compressed and written in base64. Nothing but plain values is unpickled."""
    if text.lstrip()[:1] in ("[", "{"):
        return row.literal(text, name)
    try:
        value = plain_value(_unpickled(row, name, base64.b64decode(text, validate=True)))
    except (ValueError, zlib.error, pickle.UnpicklingError, EOFError, LookupError, TypeError, AttributeError) as error:
        raise row.fault(text, f"{name} is neither JSON nor packed tests: {error}") from error
    return row.literal(value, name) if isinstance(value, str) else value


def _unpickled(row: SourceRow, name: str, data: bytes) -> Any:
    packed = zlib.decompressobj()
    pickled = packed.decompress(data, UNPACKED_MAX)
    if packed.unconsumed_tail:
        way_out = f"{name} unfolds to more than {UNPACKED_MAX >> 20} MiB; leave the row out, or give fewer tests"
        raise row.fault(f"{len(data)} bytes", way_out, UNJUDGEABLE)
    for op, place, _ in pickletools.genops(pickled):  # a text of a few bytes can ask for any room in the memo
        if op.name in ("PUT", "LONG_BINPUT") and int(place or 0) > len(pickled):
            raise pickle.UnpicklingError(f"{op.name} {place}")
    return _Plain(io.BytesIO(pickled)).load()


class _Plain(pickle.Unpickler):
    """Unpickles text, numbers, lists and dicts; whatever names a class or function is refused."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise pickle.UnpicklingError(f"names {module_name}.{global_name}")


def read_codecontests(row: SourceRow, judging: Judging) -> CodeProblem:
    """All three kinds of tests. A problem whose programs read or write files cannot be judged."""
    refuse_files(row, "input_file", "output_file")
    pairs = [
        p for name in ("public_tests", "private_tests", "generated_tests") for p in pairs_of(row, row.parsed(name))
    ]
    cases = stdio_cases(row, pairs)
    if not cases:
        raise row.without_tests()
    id = row.id("name", "id")
    known = row.parsed("solutions")
    return CodeProblem(
        id,
        row.text("description"),
        judging.contest(row, id, "stdio", cases),
        references=_of_language(known if isinstance(known, dict) else {}),
        place=row.place,
        public=tuple(distinct(stdio_cases(row, pairs_of(row, row.parsed("public_tests"))))),
    )


def _of_language(known: dict[str, Any]) -> tuple[str, ...]:
    pairs = zip(known.get("language") or (), known.get("solution") or (), strict=False)
    return tuple(text for language, text in pairs if language in (_PYTHON3, "PYTHON3"))[:REFERENCES_KEPT]


def read_codecontests_plus(row: SourceRow, judging: Judging) -> CodeProblem:
    """Read a row whose own checker decides. Most checkers need testlib.h, which the compiler must find."""
    cases = stdio_cases(row, pairs_of(row, row.parsed("test_cases")))
    if not cases:
        raise row.without_tests()
    checker = row.text("checker", default="")
    judged: dict[str, Any] = {}
    if checker.strip():
        if "testlib.h" in checker and not any(Path(folder, "testlib.h").is_file() for folder in _HEADER_FOLDERS):
            raise row.fault(
                "testlib.h", f"its checker needs this header; put it into {_HEADER_FOLDERS[1]}", UNJUDGEABLE
            )
        judged = {"compare": "checker", "checker": Program(checker, "cpp")}
    right = [s for s in row.parsed("correct_submissions") or [] if isinstance(s, dict)]
    codes = [str(s.get("code")) for s in right if str(s.get("language")).lower() in ("python", "python3", "py3", "3")]
    id = row.id("id", "name")
    problem = judging.contest(row, id, "stdio", cases, **judged)
    statement = "\n\n".join(filter(None, (row.text("title", default=""), row.text("description"))))
    return CodeProblem(id, statement, problem, references=tuple(codes[:REFERENCES_KEPT]), place=row.place)


def read_codeforces(row: SourceRow, judging: Judging) -> CodeProblem:
    """Examples and official tests; ``generated_checker`` decides where there are several right answers."""
    if row.text("interaction_format", default="").strip():
        raise row.fault("interaction_format", "is an interactive problem, and has no interactor", UNJUDGEABLE)
    refuse_files(row, "input_mode")
    pairs = [pair for name in ("official_tests", "examples") for pair in pairs_of(row, row.parsed(name))]
    cases = stdio_cases(row, pairs)
    if not cases:
        raise row.without_tests()
    judged: dict[str, Any] = {}
    if checker := row.text("generated_checker", default="").strip():
        judged = {"compare": "checker", "checker": Program(checker), "convention": "score"}
    id = row.id("id")
    problem = judging.contest(row, id, "stdio", cases, **judged)
    return CodeProblem(id, _codeforces_statement(row), problem, place=row.place)


def _codeforces_statement(row: SourceRow) -> str:
    parts = [row.text("title", default=""), row.text("description")]
    for name, heading in (("input_format", "Input"), ("output_format", "Output"), ("note", "Note")):
        if text := row.text(name, default="").strip():
            parts.append(f"{heading}\n{text}")
    for given, wanted in pairs_of(row, row.parsed("examples")):
        parts.append(f"Example input\n{given}\nExample output\n{wanted}")
    return "\n\n".join(part for part in parts if part)
