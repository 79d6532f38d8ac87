"""Common parts of the command lines of the recipe's own commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import date

from overlap.commands.flags import OneLineParser, unknown_words
from overlap.commands.parsers import positive


class Parser(OneLineParser):
    """A parser that takes overrides (section.field=value) at any position."""

    def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Words with "." before a "=" are overrides at any position, and go to ``overrides``."""
        words = list(sys.argv[1:] if argv is None else argv)
        taken, overrides = list[str](), list[str]()
        for before, word in zip(["", *words], words, strict=False):
            action = self._option_string_actions.get(before)
            is_value = action is not None and action.nargs != 0
            (overrides if _overrides(word) and not is_value else taken).append(word)
        args, rest = self.parse_known_args(taken)
        if rest:
            self.error(unknown_words(rest, words, self.flags, fields=False))
        args.overrides = overrides
        return args


def _overrides(word: str) -> bool:
    """Return whether a word is ``section.field=value``."""
    name, equals, _ = word.partition("=")
    section, dot, field = name.partition(".")
    return bool(equals and dot and section.isidentifier() and field.isidentifier())


def day(text: str) -> date:
    """A date."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: write a date as 2024-08-01") from error


def counts(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between."""
    return tuple(sorted({positive(part) for part in text.split(",")}))
