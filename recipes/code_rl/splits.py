"""Which problems are trained on and which are held out.

A split file (``overlap.rows``) says it, which ``overlap filter`` writes. Without one, a row's own column ``split``;
where no row has one, a tenth of the problems is held out by a hash of the id: stable under reordering and growth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from overlap.core import LeftOut
from overlap.core.errors import ConfigError
from overlap.rows.row import DUPLICATE, held_out, own_split
from overlap.rows.split_file import absent, split_entries
from recipes.code_rl.cases import Judging
from recipes.code_rl.core import CodeProblem
from recipes.code_rl.data import ProblemSet, load_problems


def load_splits(source: str, names: Sequence[str], judging: Judging, field: str) -> tuple[ProblemSet, ...]:
    """The problems of these splits ("train", "heldout") of a split file; those held out keep all of their tests.

    Each file that it names is read once, and only the rows count that it names. A row of the split file itself that is
    of no split is left out of the first of ``names``. Raises ConfigError.
    """
    wanted, bad = split_entries(source, names, field)
    chosen: dict[str, dict[str, CodeProblem]] = {name: {} for name in names}
    left_out: dict[str, list[LeftOut]] = {name: [] for name in names}
    left_out[names[0]] += [row.left_out() for row in bad]
    for file, rows in wanted.items():
        held = {row.id("id") for row in rows if row.text("split") == "heldout"}
        whole = replace(judging, evaluated=partial(_named, frozenset(held)))
        known = {problem.id: problem for problem in load_problems(file, whole, field).problems}
        for row in rows:
            id, name = row.id("id"), row.text("split")
            if id not in known:
                left_out[name].append(absent(row, file).left_out())
            elif id in chosen[name]:
                left_out[name].append(row.fault(id, "occurs twice in this split", DUPLICATE).left_out())
            else:
                chosen[name][id] = known[id]
    return tuple(ProblemSet(source, tuple(chosen[name].values()), tuple(left_out[name])) for name in names)


def _named(held: frozenset[str], id: str, _: object) -> bool:
    return id in held


def divide(
    problems: Sequence[CodeProblem], judging: Judging, field: str
) -> tuple[tuple[CodeProblem, ...], tuple[CodeProblem, ...]]:
    """(train, heldout) by the rows' own ``split``, or by a hash of the id, each in the order given. Raises ConfigError.

    What is trained on is judged by as many tests as ``judging`` says, however many it was read with.
    """
    parts: tuple[list[CodeProblem], list[CodeProblem]] = ([], [])
    for problem, out in zip(problems, held_out(((p.id, p.split, p.place) for p in problems), field), strict=True):
        cases = problem.problem.cases
        if not out and len(kept := judging.sampled(cases)) < len(cases):
            problem = replace(problem, problem=replace(problem.problem, cases=kept))
        parts[out].append(problem)
    return tuple(parts[False]), tuple(parts[True])


def only(found: ProblemSet, split: str, field: str) -> ProblemSet:
    """The problems of a source for one split, without those whose row says the other. Raises ConfigError."""
    kept, left_out = list[CodeProblem](), list(found.left_out)
    for problem in found.problems:
        if (own := own_split(problem.split, problem.place, field) or split) == split:
            kept.append(problem)
        else:
            left_out.append(LeftOut(problem.place or problem.id, f"{own} by its own split", by_choice=True))
    return replace(found, problems=tuple(kept), left_out=tuple(left_out))


def refuse_overlap(train: Sequence[CodeProblem], heldout: Sequence[CodeProblem]) -> None:
    """Raise ConfigError when a held-out statement is trained on."""
    trained = {problem.statement.strip() for problem in train}
    if both := [problem.id for problem in heldout if problem.statement.strip() in trained]:
        shown = f"{len(both)} problems, {both[0]} among them"
        raise ConfigError("data.heldout", shown, "are trained on too, so they would measure nothing; take them out")
