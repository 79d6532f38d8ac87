"""The tokens of a sample, each with its text and the log-probs of engine and learner."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from overlap.core.errors import ConfigError, error_reason
from overlap.inspect.run_data import RunData
from overlap.record.row_shapes import unpacked_bytes, unpacked_floats, unpacked_ints
from overlap.record.run_files import RunFile

TokenFigure = Literal["gap", "advantage", "logprob"]
TOKEN_FIGURES: tuple[str, ...] = get_args(TokenFigure)


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
        values: Sequence[float | None]
        if name == "logprob":
            values = self.logprobs
        elif name == "advantage":
            values = [self.advantage] * len(self.ids)
        elif self.learner is None:
            values = [None] * len(self.ids)
        else:
            values = [a - b for a, b in zip(self.logprobs, self.learner, strict=True)]
        return [value if sampled else None for value, sampled in zip(values, self.mask, strict=True)]


class TokenTexts:
    """The texts of token ids, by the tokenizer of the run's policy, which is loaded when it is first asked for."""

    def __init__(self, run: RunData) -> None:
        self._run = run
        self._tokenizer: Any = None

    def of(self, ids: Sequence[int]) -> list[str]:
        """The text that each token adds, [T]. One that ends within a character adds "", and a later one the rest.

        Raises ConfigError where the run's tokenizer cannot be loaded.
        """
        from tokenizers.decoders import DecodeStream

        if self._tokenizer is None:
            self._tokenizer = self._load()
        stream = DecodeStream(skip_special_tokens=False)
        try:
            return [stream.step(self._tokenizer, token) or "" for token in ids]
        except Exception as error:  # the library raises plain Exception
            raise ConfigError(
                "--tokens", str(self._run.path), f"has another tokenizer ({error_reason(error)})"
            ) from error

    def _load(self) -> Any:
        from tokenizers import Tokenizer  # a second less than transformers, which reads the same file

        path, policy = self._run.path, str(self._run.config.get("model", {}).get("policy") or "")
        newest = sorted(path.glob(RunFile.EXPORTED.filename), reverse=True)
        folders = [RunFile.POLICY.of(path), RunFile.BEST.of(path), *newest]
        file = next((found for folder in folders if (found := folder / "tokenizer.json").is_file()), None)
        if file is None:
            if not policy:
                raise ConfigError("--tokens", str(path), "names no policy whose tokenizer gives the tokens' texts")
            from overlap.policy.resolve import resolve_policy

            file = resolve_policy(policy) / "tokenizer.json"
        try:
            return Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise ConfigError("--tokens", str(file), f"is no tokenizer ({error_reason(error)})") from error
