"""The tokens of an answer in the colours of a figure, and those at which it is largest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from overlap.core.errors import ConfigError, count_of
from overlap.inspect.terminal import safe, table, title
from overlap.inspect.tokens import SampleTokens, TokenFigure, TokenTexts

LARGEST = 15
MEANINGS = {
    "gap": "log-prob of the engine minus that of the learner before the step",
    "advantage": "that of the answer, which the learner was given",
    "logprob": "log-prob of the engine",
}
_BOUNDS = (0.5, 0.1, 0.02, 0.005)
"""From which a figure is shown in the strongest colour, the next one, ..."""
_POSITIVE = ("bold color(46)", "color(40)", "color(114)", "color(151)")
_NEGATIVE = ("bold color(196)", "color(203)", "color(210)", "color(217)")


def tokens_shown(row: Mapping[str, Any], name: TokenFigure, texts: TokenTexts) -> Iterator[RenderableType]:
    """The answer with each token coloured, then a table of the tokens with the largest figures.

    Raises ConfigError where the row keeps no tokens.
    """
    tokens = SampleTokens.of(row)
    if tokens is None:
        raise ConfigError("--tokens", row["id"], "keeps no token ids; runs of this version keep them (run.samples)")
    figures = tokens.figures(name)
    known = sorted(((abs(value), at) for at, value in enumerate(figures) if value is not None), reverse=True)
    yield title(f"{row['id']} · {count_of(len(tokens.ids), 'token')} by {name}: {MEANINGS[name]}")
    if not known:
        why = ": the learner computes log-probs only of samples that it trains on" if name == "gap" else ""
        yield f"no {name} is kept of this sample{why}"
        return
    try:
        words = texts.of(tokens.ids)
    except ConfigError as error:
        yield f"the texts of its tokens are not known: {error}"
        words = [f" {token}" for token in tokens.ids]
    mean = sum(value for value in figures if value is not None) / len(known)
    yield f"mean {mean:+.5f}, largest {known[0][0]:.5f}"
    yield _coloured(words, figures)
    yield ""
    cells = [
        (
            at,
            f"{figures[at]:+.5f}",
            f"{tokens.logprobs[at]:.4f}",
            "-" if tokens.learner is None else f"{tokens.learner[at]:.4f}",
            repr(words[at]),
        )
        for _, at in known[:LARGEST]
    ]
    yield table(("token", name, "logprob", "learner", "text"), cells, right="token gap advantage logprob learner")


def _coloured(words: Sequence[str], figures: Sequence[float | None]) -> Text:
    made = Text()
    for word, value in zip(words, figures, strict=True):
        if value is None:
            made.append(safe(word), "bright_black")
            continue
        styles = _POSITIVE if value > 0 else _NEGATIVE
        made.append(safe(word), next((s for b, s in zip(_BOUNDS, styles, strict=True) if abs(value) >= b), ""))
    return made
