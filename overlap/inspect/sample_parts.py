"""A sample as the page wants it: JSON, with all that is computed done; its tokens, and the branches of an episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import takewhile
from operator import eq
from pathlib import Path
from typing import Any, NamedTuple

from pygments.lexers import get_lexer_by_name
from pygments.token import STANDARD_TYPES
from pygments.util import ClassNotFound

from overlap.core.errors import ConfigError, error_reason
from overlap.inspect.run_data import RunData
from overlap.inspect.sample_filter import passed
from overlap.inspect.sample_reason import (
    difference_of,
    first_failed_test,
    program_end,
    reason,
    test_message,
    verdict_words,
    whole_text,
)
from overlap.record.row_shapes import PACKED_COLUMNS, unpacked_bytes, unpacked_floats, unpacked_ints
from overlap.record.run_files import RunFile

_DIGITS = 5


def sample_parts(row: Mapping[str, Any]) -> dict[str, Any]:
    """A whole sample: its row without numbers per token, why it got its reward, differences, its program in parts."""
    program, failed = row.get("program"), first_failed_test(row)
    found = branches(row) if row["turns"] > 1 or row["branches"] > 1 else []
    return {
        **{name: value for name, value in row.items() if name not in PACKED_COLUMNS},
        "why": reason(row),
        "good": passed(row),
        "tests": [test_parts(test, row.get("kind") or "") for test in row.get("tests") or ()],
        "failed_test": failed["index"] if failed else None,
        "program": program and {**program, "parts": _program_parts(program["source"], program.get("language") or "")},
        "forks": [branch._asdict() for branch in found],
        "has_tokens": bool(row.get("token_ids")),
    }


def test_parts(test: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """A test of a sample with its texts whole, its verdict and its end in words, and the ``diff`` of a wrong answer."""
    texts = {name: whole_text(test.get(name)) for name in ("input", "expected", "got", "stderr")}
    told = {"message": test_message(test), "words": verdict_words(test["verdict"]), "ending": program_end(test)}
    return {**test, **texts, **told, "diff": difference_of(kind, test)}


def _program_parts(source: str, language: str) -> list[list[str]]:
    """A program in parts, each with its kind: pygments' short name of a function, class or builtin, else the first
    letter of keywords, strings, comments and numbers ("m"); "" for all else.
    """
    try:
        lexer: Any = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return [["", source]]
    parts: list[list[str]] = []
    for kind, text in lexer.get_tokens(source):
        name = STANDARD_TYPES.get(kind, "")
        short = name if name in ("nf", "nc", "nb") else name[:1] if name[:1] in ("k", "s", "c", "m") else ""
        if parts and parts[-1][0] == short:
            parts[-1][1] += text
        else:
            parts.append([short, text])
    return parts


def token_parts(row: Mapping[str, Any], run: RunData) -> dict[str, Any]:
    """The tokens of a sample, T of them: ``texts``, and lists of ``figures``, with None for a token that the policy did
    not sample. ``gap``: log-prob of the engine minus that of the learner before the step; ``advantage``: that of the
    sample; a figure that is not known is None. Without texts, ``error`` says why.
    """
    if not row.get("token_ids") or not row.get("logprobs"):
        return {"error": "this sample keeps no tokens", "texts": [], "figures": {}}
    ids, logprobs, advantage = unpacked_ints(row["token_ids"]), unpacked_floats(row["logprobs"]), row["advantage"]
    mask = unpacked_bytes(row["mask"]) if row.get("mask") else bytes([1]) * len(ids)
    learner = unpacked_floats(row.get("learner_logprobs") or "")
    known = {
        "gap": [engine - own for engine, own in zip(logprobs, learner, strict=True)] if learner else None,
        "advantage": None if advantage is None else [advantage] * len(ids),
        "logprob": logprobs,
    }
    figures = {
        name: values and [round(value, _DIGITS) if at else None for value, at in zip(values, mask, strict=True)]
        for name, values in known.items()
    }
    texts, error = _token_texts(run, ids)
    return {"error": error or None, "texts": texts, "figures": figures}


def _token_texts(run: RunData, ids: Sequence[int]) -> tuple[list[str], str]:
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
