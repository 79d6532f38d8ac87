"""The ends of a run: the words that ``exit`` of its summary begins with, and what follows from each."""

from __future__ import annotations

from enum import StrEnum


class RunExit(StrEnum):
    """A member is its words; a detail may follow them ("error: the engine died")."""

    in_order: bool
    """True when the run did what it was asked to, and has not failed."""
    measured: bool
    """True when the evaluation of its end was made."""
    complete: bool
    """True when nothing is left to be trained."""

    FINISHED = "finished", True, True, True
    ALL_SOLVED = "all prompts solved", True, True, True
    DRAINED = "drained", True, True, False
    BY_CALLBACK = "stopped by callback", True, True, False
    STOPPED = "stopped", True, False, False
    INTERRUPTED = "interrupted", False, False, False
    ERROR = "error", False, False, False

    def __new__(cls, words: str, in_order: bool, measured: bool, complete: bool) -> RunExit:
        member = str.__new__(cls, words)
        member._value_ = words
        member.in_order, member.measured, member.complete = in_order, measured, complete
        return member

    @classmethod
    def of(cls, text: str) -> RunExit:
        """The member that ``text`` begins with, the longest. Raises ValueError where none is."""
        found = [member for member in cls if text.startswith(member)]
        if not found:
            raise ValueError(f"{text!r} is no end of a run; ends begin with {', '.join(cls)}")
        return max(found, key=len)
