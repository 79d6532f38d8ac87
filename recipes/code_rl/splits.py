"""Which problems are trained on and which are held out.

A split file is JSONL with rows {id, passes, samples, split, source}: a problem's id, how often a policy solved it in
how many samples, "train", "heldout" or "dropped", and the problem file that it is of (relative to the split file, or a
hub id). ``overlap filter`` writes one. Without a split file, a tenth of the problems is held out by a hash of the id:
stable under reordering and growth.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from overlap.core import LeftOut
from overlap.errors import ConfigError
from overlap.rows import DUPLICATE, SourceRow, Unusable, first_row, is_held_out, source_rows
from recipes.code_rl.cases import Judging
from recipes.code_rl.core import NOT_THERE, CodeProblem
from recipes.code_rl.data import ProblemSet, load_problems

COLUMNS = frozenset({"id", "split", "source"})
_NAMES = ("train", "heldout", "dropped")


def load_splits(source: str, names: Sequence[str], judging: Judging, field: str) -> tuple[ProblemSet, ...]:
    """The problems of these splits ("train", "heldout") of a split file; those held out keep all of their tests.

    Each file that it names is read once, and only the rows count that it names. A row of the split file itself that is
    of no split is left out of the first of ``names``. Raises ConfigError.
    """
    wanted, bad = _wanted(source, names, field)
    chosen: dict[str, dict[str, CodeProblem]] = {name: {} for name in names}
    left_out: dict[str, list[LeftOut]] = {name: [] for name in names}
    left_out[names[0]] += bad
    for file, rows in wanted.items():
        held = {row.id("id") for row in rows if row.text("split") == "heldout"}
        whole = replace(judging, evaluated=held.__contains__)
        known = {problem.id: problem for problem in load_problems(_resolved(source, file), whole, field).problems}
        for row in rows:
            id, name = row.id("id"), row.text("split")
            if id not in known:
                way_out = f"{file} has no usable problem of this id; measure anew with overlap filter"
                left_out[name].append(row.fault(id, way_out, NOT_THERE).left_out())
            elif id in chosen[name]:
                left_out[name].append(row.fault(id, "occurs twice in this split", DUPLICATE).left_out())
            else:
                chosen[name][id] = known[id]
    return tuple(ProblemSet(source, tuple(chosen[name].values()), tuple(left_out[name])) for name in names)


def is_split_file(source: str) -> bool:
    """Whether the first row has the columns of a split file."""
    try:
        path = Path(source).expanduser()
        if not path.is_file() or path.suffix != ".jsonl":
            return False
    except (OSError, RuntimeError):  # whoever reads it says what is wrong with it
        return False
    first = first_row(path)
    return first is not None and first.values.keys() >= COLUMNS


def _wanted(source: str, names: Sequence[str], field: str) -> tuple[dict[str, list[SourceRow]], list[LeftOut]]:
    """Rows of these splits by the file that they are of, and the rows that are of no split."""
    wanted: dict[str, list[SourceRow]] = defaultdict(list)
    left_out = []
    for row in source_rows(source, field):
        try:
            if isinstance(row, Unusable):
                raise row
            if row.text("split") not in _NAMES:
                raise row.fault(row.values["split"], f"split must be one of {', '.join(_NAMES)}")
            if row.text("split") in names:
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


def refuse_overlap(train: Sequence[CodeProblem], heldout: Sequence[CodeProblem]) -> None:
    """Raise ConfigError when a held-out statement is trained on."""
    trained = {problem.statement.strip() for problem in train}
    if both := [problem.id for problem in heldout if problem.statement.strip() in trained]:
        shown = f"{len(both)} problems, {both[0]} among them"
        raise ConfigError("data.heldout", shown, "are trained on too, so they would measure nothing; take them out")
