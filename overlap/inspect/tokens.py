"""The tokens of a sample, each with its text and the log-probs of engine and learner; the branches of an episode."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from operator import eq
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from overlap.core.errors import ConfigError, error_reason
from overlap.inspect.run_data import RunData
from overlap.record.row_shapes import unpacked_bytes, unpacked_floats, unpacked_ints
from overlap.record.run_files import RunFile

TokenFigure = Literal["gap", "advantage", "logprob"]
TOKEN_FIGURES: tuple[TokenFigure, ...] = get_args(TokenFigure)


@dataclass(frozen=True, slots=True)
class SampleTokens:
    """Sampled tokens of an answer, all of length T."""

    ids: array[int]
    logprobs: array[float]
    """By the engine that sampled them."""
    learner: array[float] | None
    """By the learner's weights before the step; None where it did not say."""
    mask: bytes
    """1 where the policy sampled the token, 0 where an environment put it there."""
    advantage: float | None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> SampleTokens | None:
        """Tokens of a row of trajectories.jsonl; None where it keeps none."""
        if not row.get("token_ids") or not row.get("logprobs"):
            return None
        ids, learner = unpacked_ints(row["token_ids"]), row.get("learner_logprobs")
        mask = unpacked_bytes(row["mask"]) if row.get("mask") else bytes([1]) * len(ids)
        logprobs = unpacked_floats(row["logprobs"])
        return cls(ids, logprobs, unpacked_floats(learner) if learner else None, mask, row["advantage"])

    def figures(self, name: TokenFigure) -> list[float | None]:
        """One figure for each token, [T]; None where the token was not sampled, or the figure is not known.

        ``gap``: log-prob of the engine minus that of the learner. ``advantage``: that of the sample.
        """
        values: Sequence[float | None] = [None] * len(self.ids)
        if name == "logprob":
            values = self.logprobs
        elif name == "advantage":
            values = [self.advantage] * len(self.ids)
        elif self.learner is not None:
            values = [a - b for a, b in zip(self.logprobs, self.learner, strict=True)]
        return [value if sampled else None for value, sampled in zip(values, self.mask, strict=True)]


def token_texts(run: RunData, ids: Sequence[int]) -> tuple[list[str], str]:
    """The text that each token adds, [T], by the tokenizer of the run's policy: one that ends within a character adds
    "", and a later one the rest. Where that tokenizer cannot be had, the numbers of the tokens, and the reason.
    """
    try:
        from tokenizers.decoders import DecodeStream

        tokenizer, stream = _tokenizer(run), DecodeStream(skip_special_tokens=False)
        return [stream.step(tokenizer, token) or "" for token in ids], ""
    except Exception as error:  # of a hub, a file or the library, which raises plain Exception
        reason = error_reason(error)
    return [f"⟨{token}⟩" for token in ids], reason


def _tokenizer(run: RunData) -> Any:
    path, policy = run.path, str(run.config.get("model", {}).get("policy") or "")
    newest = sorted(path.glob(RunFile.EXPORTED.filename), reverse=True)
    folders = [RunFile.POLICY.of(path), RunFile.BEST.of(path), *newest]
    file = next((found for folder in folders if (found := folder / "tokenizer.json").is_file()), None)
    if file is None and not policy:
        raise ConfigError("--tokens", str(path), "names no policy whose tokenizer gives the tokens' texts")
    if file is None:
        from overlap.policy.resolve import resolve_policy

        file = resolve_policy(policy) / "tokenizer.json"
    return _loaded(file)


@cache
def _loaded(file: Path) -> Any:
    from tokenizers import Tokenizer  # a second less than transformers, which reads the same file

    return Tokenizer.from_file(str(file))


class EpisodeBranch(NamedTuple):
    """``parent``: the branch with which it shares the longest beginning, ``shared`` tokens; None of the first one.
    ``depth`` is the number of its ancestors. Branches are numbered from 1, in the order in which they were sampled; the
    last one has the answer that was judged.
    """

    number: int
    parent: int | None
    shared: int
    tokens: int
    finish: str
    text: str
    depth: int


def branches(row: Mapping[str, Any]) -> list[EpisodeBranch]:
    """The branches of a whole row; one where the answer has no forks."""
    found: list[EpisodeBranch] = []
    earlier: list[list[int]] = []
    last = {**row, "text": row["answer"]}
    for number, branch in enumerate((*(row.get("forks") or ()), last), 1):
        own = unpacked_ints(branch.get("token_ids") or "")
        ids = [*unpacked_ints(branch.get("prompt_token_ids") or ""), *own]
        shared = [sum(takewhile(bool, map(eq, ids, other))) for other in earlier]
        parent = max(range(len(shared)), key=shared.__getitem__) + 1 if shared else None
        depth = found[parent - 1].depth + 1 if parent else 0
        share = max(shared, default=0)
        found.append(EpisodeBranch(number, parent, share, len(own), branch["finish"], branch["text"], depth))
        earlier.append(ids)
    return found
