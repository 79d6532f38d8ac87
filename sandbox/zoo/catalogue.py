"""The entries of the zoo, and their programs with labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sandbox.core.nouns import Program
from sandbox.zoo import asserting, ending, forging, leaving, limits, masking, peeking, reaching
from sandbox.zoo.exhibits import Entry, LabelledProgram

MODULES = (ending, forging, asserting, peeking, leaving, limits, masking, reaching)


def entries() -> tuple[Entry, ...]:
    """The whole zoo, by row."""
    return tuple(sorted((entry for module in MODULES for entry in module.ENTRIES), key=lambda entry: entry.row))


def labelled_programs(chosen: Iterable[Entry] | None = None, *, harmful: bool = False) -> Iterator[LabelledProgram]:
    """Every program of the zoo, or of some entries, with its label; `harmful` adds what hurts an unconfined machine."""
    for entry in entries() if chosen is None else chosen:
        for number, attack in enumerate(entry.attacks):
            if harmful or not attack.harmful:
                program = Program(attack.source, attack.language)
                name = f"{entry.row:02}-{entry.id}-{number + 1}"
                yield LabelledProgram(name, entry.problem, program, right=False, hostile=True)
        for number, program in enumerate(entry.honest):
            yield LabelledProgram(f"{entry.row:02}-{entry.id}-twin-{number + 1}", entry.problem, program, right=True)
