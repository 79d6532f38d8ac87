"""A command line that argparse refuses, in one line with what was meant: a flag that is spelt nearly so, a field of the
configuration written as a flag, a field of another trainer.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import NoReturn

from overlap.core.errors import near_or_all


class OneLineParser(argparse.ArgumentParser):
    """Refuses bad input in one line, without its usage, as all bad input is; exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"overlap: bad input: {' '.join(message.split())}; `{self.prog} --help` lists all\n")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"{value!r} is none; {near_or_all(value, action.choices)}")

    @property
    def flags(self) -> list[str]:
        """Its long flags."""
        return [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]


_A_FLAG = "here it is the flag "
"""Text of ``name_hint`` for names that are fields in other trainers, and flags of ``overlap train``."""


def unknown_words(words: Sequence[str], argv: Sequence[str], flags: Sequence[str], *, fields: bool) -> str:
    """Return the message for words of a command line that its command does not know. ``fields``: the command takes
    fields of the configuration, so that a flag may be meant as one.
    """
    wrong = [word for word in words if word.startswith("-")] or words
    hints = [_unknown_word(word, argv, flags, fields) for word in wrong]
    dashes = any(hint.startswith("-") for hint in hints)
    return "; ".join([*hints, *(["fields are written without dashes: section.field=value"] if dashes else [])])


def _unknown_word(word: str, argv: Sequence[str], flags: Sequence[str], fields: bool) -> str:
    flag, equals, value = word.partition("=")
    if not flag.startswith("-"):
        way_out = "write fields of the configuration as section.field=value, for instance learn.lr=1e-6"
        return f"{word} is not known here" + (f"; {way_out}" if fields else "")
    plain = {_plain(known): known for known in flags}
    meant = [known for name, known in plain.items() if name.startswith(_plain(flag))]
    meant = meant or [plain[name] for name in difflib.get_close_matches(_plain(flag), plain, n=1, cutoff=0.8)]
    same = _plain(flag) in plain
    hint = _field_hint(flag, value if equals else _behind(word, argv)) if fields and not same else ""
    if hint.startswith(_A_FLAG) and hint.removeprefix(_A_FLAG) not in flags:
        return f"there is no {flag} here; `overlap train` has {hint.removeprefix(_A_FLAG)}"
    if hint and (not meant or hint.startswith(("here it is", "there is none"))):
        return f"{flag}: {hint}"
    return f"there is no {flag}" + (f"; did you mean {meant[0]}?" if meant else "")


def _field_hint(flag: str, value: str) -> str:
    """Return a hint at the field of the configuration that a flag was meant as; "" where it is not known."""
    from overlap.config.hints import name_hint

    hint = name_hint(flag.lstrip("-").replace("-", "_").split("."), value)
    return "" if hint.startswith("known are") else hint


def _behind(word: str, argv: Sequence[str]) -> str:
    """The word that follows, where it may be the value of this one."""
    at = list(argv).index(word) + 1
    return argv[at] if at < len(argv) and not argv[at].startswith("-") else ""


def _plain(flag: str) -> str:
    return flag.replace("-", "").replace("_", "").lower()
