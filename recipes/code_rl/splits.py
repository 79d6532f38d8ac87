"""Which problems are trained on and which are held out.

A split file is JSONL with rows {id, passes, samples, split, source}: a problem's id, how often a policy solved it in
how many samples, "train", "heldout" or "dropped", and the problem file that it is of (relative to the split file, or a
hub id). ``overlap filter`` writes one. Without a split file, a tenth of the problems is held out by a hash of the id:
stable under reordering and growth.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from overlap.core import LeftOut
from overlap.errors import ConfigError
from recipes.code_rl.cases import Judging
from recipes.code_rl.core import DUPLICATE, NOT_THERE, CodeProblem, Row, Unusable
from recipes.code_rl.data import ProblemSet, load_problems
from recipes.code_rl.sources import read_rows

COLUMNS = frozenset({"id", "split", "source"})
_NAMES = ("train", "heldout", "dropped")
_HELDOUT_SHARE = 10
"""One problem in this many is held out where nobody says which."""


def load_split(source: str, split: str, judging: Judging, field: str) -> ProblemSet:
    """The problems of ``split`` in ``source``: a split file's, or all problems of any other source.

    Of the files that a split names, only the rows that it names count. Raises ConfigError.
    """
    if not is_split_file(source):
        return load_problems(source, judging, field)
    wanted, left_out = _wanted(source, split, field)
    chosen: dict[str, CodeProblem] = {}
    for file, rows in wanted.items():
        known = {problem.id: problem for problem in load_problems(_resolved(source, file), judging, field).problems}
        for row in rows:
            try:
                id = row.id("id")
                if id not in known:
                    way_out = f"{file} has no usable problem of this id; measure anew with overlap filter"
                    raise row.fault(id, way_out, NOT_THERE)
                if id in chosen:
                    raise row.fault(id, "occurs twice in this split", DUPLICATE)
                chosen[id] = known[id]
            except Unusable as error:
                left_out.append(error.left_out())
    return ProblemSet(source, tuple(chosen.values()), tuple(left_out))


def is_split_file(source: str) -> bool:
    """Whether the first row has the columns of a split file."""
    try:
        path = Path(source).expanduser()
        if not path.is_file() or path.suffix != ".jsonl":
            return False
    except (OSError, RuntimeError):  # whoever reads it says what is wrong with it
        return False
    first = next((row for row in read_rows(source) if isinstance(row, Row)), None)
    return first is not None and first.values.keys() >= COLUMNS


def _wanted(source: str, split: str, field: str) -> tuple[dict[str, list[Row]], list[LeftOut]]:
    wanted: dict[str, list[Row]] = defaultdict(list)
    left_out = []
    for row in read_rows(source, field):
        try:
            if isinstance(row, Unusable):
                raise row
            if row.text("split") not in _NAMES:
                raise row.fault(row.values["split"], f"split must be one of {', '.join(_NAMES)}")
            if row.text("split") == split:
                wanted[row.text("source")].append(row)
        except Unusable as error:
            left_out.append(error.left_out())
    return wanted, left_out


def _resolved(split_file: str, source: str) -> str:
    beside = Path(split_file).expanduser().parent / source
    return str(beside) if beside.exists() else source


def divide(problems: Sequence[CodeProblem]) -> tuple[tuple[CodeProblem, ...], tuple[CodeProblem, ...]]:
    """(train, heldout) by a hash of the id, each in the order given."""
    heldout = tuple(problem for problem in problems if is_held_out(problem.id))
    return tuple(problem for problem in problems if not is_held_out(problem.id)), heldout


def is_held_out(id: str) -> bool:
    """Whether ``divide`` holds the problem of this id out."""
    return int.from_bytes(hashlib.sha256(id.encode()).digest()[:8], "big") % _HELDOUT_SHARE == 0


def refuse_overlap(train: Sequence[CodeProblem], heldout: Sequence[CodeProblem]) -> None:
    """Raise ConfigError when a held-out statement is trained on."""
    trained = {problem.statement.strip() for problem in train}
    if both := [problem.id for problem in heldout if problem.statement.strip() in trained]:
        shown = f"{len(both)} problems, {both[0]} among them"
        raise ConfigError("data.heldout", shown, "are trained on too, so they would measure nothing; take them out")
