"""The texts of a sample's tokens, and the branches of an episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import takewhile
from operator import eq
from pathlib import Path
from typing import Any, NamedTuple

from overlap.core.errors import ConfigError, error_reason
from overlap.inspect.run_data import RunData
from overlap.record.row_shapes import unpacked_ints
from overlap.record.run_files import RunFile


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
        raise ConfigError("model.policy", policy, "names no policy whose tokenizer gives the tokens' texts")
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
