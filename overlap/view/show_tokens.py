"""The tokens of an answer in the colours of a figure, and those at which it is largest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from overlap.errors import ConfigError, count_of
from overlap.view.terminal import Screen, safe
from overlap.view.tokens import SampleTokens, TokenFigure, TokenTexts

LARGEST = 15
MEANINGS = {
    "gap": "log-prob of the engine minus that of the learner before the step",
    "advantage": "what the learner was told of the answer",
    "logprob": "log-prob of the engine",
}
_STEPS = ((0.5, 4), (0.1, 3), (0.02, 2), (0.005, 1))
"""Of a figure's share of its scale: the strength of the colour."""
_POSITIVE = ("", "38;5;151", "38;5;114", "38;5;40", "1;38;5;46")
_NEGATIVE = ("", "38;5;217", "38;5;210", "38;5;203", "1;38;5;196")


def token_lines(row: Mapping[str, Any], name: TokenFigure, texts: TokenTexts, screen: Screen) -> Iterator[str]:
    """The answer with each token coloured, then a table of the tokens with the largest figures.

    Raises ConfigError where the row keeps no tokens.
    """
    tokens = SampleTokens.of(row)
    if tokens is None:
        raise ConfigError("--tokens", row["id"], "keeps no token ids; runs of this version keep them (run.samples)")
    figures = tokens.figures(name)
    known = [(abs(value), at) for at, value in enumerate(figures) if value is not None]
    yield screen.title(f"{row['id']} · {count_of(len(tokens.ids), 'token')} by {name}: {MEANINGS[name]}")
    if not known:
        why = ": the learner computes log-probs only of samples that it learns from" if name == "gap" else ""
        yield f"no {name} is kept of this sample{why}"
        return
    try:
        words = texts.of(tokens.ids)
    except ConfigError as error:
        yield f"the texts of its tokens are not known: {error}"
        words = [f" {token}" for token in tokens.ids]
    values = [value for value in figures if value is not None]
    yield f"mean {sum(values) / len(values):+.5f}, largest {max(known)[0]:.5f}"
    if screen.colour:
        yield from _coloured(words, figures).split("\n")
        yield ""
    largest = sorted(known, reverse=True)[:LARGEST]
    yield from screen.table(
        ("token", name, "logprob", "learner", "text"),
        [
            (
                at,
                f"{figures[at]:+.5f}",
                f"{tokens.logprobs[at]:.4f}",
                "-" if tokens.learner is None else f"{tokens.learner[at]:.4f}",
                repr(words[at]),
            )
            for _, at in largest
        ],
        right="token gap advantage logprob learner",
    )


def _coloured(words: Sequence[str], figures: Sequence[float | None]) -> str:
    parts = []
    for word, value in zip(words, figures, strict=True):
        text = safe(word)
        strength = next((s for bound, s in _STEPS if value is not None and abs(value) >= bound), 0)
        code = (_POSITIVE if (value or 0) > 0 else _NEGATIVE)[strength] if value is not None else "90"
        lines = text.split("\n")
        parts.append("\n".join(f"\x1b[{code}m{line}\x1b[0m" if code and line else line for line in lines))
    return "".join(parts)
