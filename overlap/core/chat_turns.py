"""The parts of an answer for its client, and counts over the turns of an episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Spoken:
    """An answer as the model's parsers read it. ``calls`` are names and arguments (JSON text) of tools. ``failed``: the
    parser could not read the answer, and ``text`` is all of it.
    """

    text: str
    reasoning: str | None = None
    calls: tuple[tuple[str, str], ...] = ()
    failed: bool = False

    @property
    def whole(self) -> Spoken:
        """The same in whole characters: halves, which a parser reads where a model spells them, can be sent nowhere."""
        reasoning = None if self.reasoning is None else unicode_of(self.reasoning)
        calls = tuple((unicode_of(name), unicode_of(arguments)) for name, arguments in self.calls)
        return Spoken(unicode_of(self.text), reasoning, calls, self.failed)


def unicode_of(text: str) -> str:
    """The text, with each half of a character (a lone surrogate) as U+FFFD."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@dataclass(frozen=True, slots=True)
class Used:
    """Counts of an episode: answers that arrived, tokens sampled (also for answers that did not), tokens in front of
    all its turns and how many of them the engine had in its cache, answers that were asked for again and not sampled,
    answers that a parser could not read, and whether its time was up before it ended (``episode.timeout_s``).

    ``rerendered``: tokens of earlier turns that were rendered anew because the chat template could not continue them.
    ``refused`` and ``ignored``: by parameter, requests that were refused for it, and those in which it had no effect
    (``turn_marks``: texts that read as turns).
    """

    turns: int
    sampled: int
    prompted: int
    cached: int
    replayed: int
    unread: int
    out_of_time: bool = False
    rerendered: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    ignored: Mapping[str, int] = field(default_factory=dict)
