"""The learner's attention on a device: against softmax under a mask, and its time beside plain causal attention."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from _rows import Place, Row, attempt

sys.path.append(str(Path(__file__).parents[1] / "bench"))
import _shared  # makes the modules of tests/support importable
from attention import cases as bench_cases
from attention_cost import AttentionCase, attention_seconds

from overlap.learner.micro_batch import MicroBatch, PackedRow, Response
from overlap.learner.tensors import to_tensors

assert _shared.SUPPORT.is_dir()
HEADS = ((12, 2, 128), (14, 2, 64), (16, 16, 128), (4, 1, 256), (6, 2, 80))
"""Query heads, key heads, width: first those of a policy of 1.5B."""
LENGTHS = {"cuda": (2048, 8192, 32768), "cpu": (64,)}
BUDGET = 36864
BOUNDS = {"bfloat16": 1e-2, "float32": 1e-4}
"""Of the norm of the difference from float32 under a mask, over that one's norm; it is 3e-3 in bfloat16 on a CPU."""
ROUNDS = 5


@dataclass(frozen=True)
class Shape:
    """Prompts with their responses, in tokens."""

    prompts: tuple[int, ...]
    responses: tuple[tuple[int, ...], ...]

    def micro(self) -> MicroBatch:
        """The rows that a rank packs."""

        def response(length: int) -> Response:
            return Response(array("i", range(length)), array("f", bytes(4 * length)), 1.0)

        rows = zip(self.prompts, self.responses, strict=True)
        return MicroBatch(tuple(PackedRow(array("i", range(p)), tuple(map(response, many))) for p, many in rows))


def checks(place: Place) -> Iterator[Row]:
    """Equality first, for each kind of heads and both number types, then seconds."""
    shape = Shape((300, 17, 129), ((256, 1, 77), (400,), (3, 128, 250, 31)))
    if place.rehearses:
        shape = Shape((30, 5), ((20, 1, 7), (9,)))
    for heads in HEADS:
        for dtype in BOUNDS:
            name = f"{heads[0]} heads, {heads[1]} of keys, {heads[2]} wide, {dtype}"
            yield attempt(name, partial(_equal, shape, heads, dtype, place.device))
    names = {str(length) for length in LENGTHS[place.device]}
    found = bench_cases(max(LENGTHS[place.device]), BUDGET, "bfloat16")
    if place.rehearses:
        names, found = {"64"}, [("    16       64 alike ", AttentionCase(16, (64,) * 3, 512))]
    for name, case in found:
        prompt, length, kind = name.split()
        if length in names:
            real = replace(case, heads=HEADS[0][0], keys=HEADS[0][1], width=HEADS[0][2])
            yield attempt(f"prompt {prompt}, responses {length} {kind}", partial(_timed, real, place.device))


def _equal(shape: Shape, heads: tuple[int, int, int], dtype: str, device: str) -> Row:
    """Output and gradients of the learner's attention against float32 under a mask."""
    import torch

    from overlap.learner.attention import packed_attention
    from overlap.learner.spans import Spans

    tensors, kind = to_tensors(shape.micro(), device), getattr(torch, dtype)
    length = tensors.ids.numel()
    torch.manual_seed(0)
    made = [torch.randn(1, length, n, heads[2], device=device).to(kind) for n in (heads[0], heads[1], heads[1])]
    given = [x.transpose(1, 2).requires_grad_() for x in made]
    exact = [x.detach().float().requires_grad_() for x in given]
    upstream = torch.randn(1, length, heads[0], heads[2], device=device).to(kind)
    got = packed_attention(None, *given, None, layout=tensors.layout)[0]
    wanted = _masked(exact, _sees(shape, length, device))
    pairs = [(got, wanted)]
    pairs += zip(
        torch.autograd.grad(got, given, upstream), torch.autograd.grad(wanted, exact, upstream.float()), strict=True
    )
    errors = [float((a.float() - b).norm() / b.norm()) for a, b in pairs]
    row = dict(zip(("output", "d_query", "d_key", "d_value"), errors, strict=True))
    return {"ok": max(errors) <= BOUNDS[dtype], **row, "by_spans": isinstance(tensors.layout, Spans)}


def _sees(shape: Shape, length: int, device: str) -> Any:
    """[N, N]: a token sees its prompt, and what is not behind it in its own piece. The last token of a response is
    predicted only, so it is no part of the sequence.
    """
    import torch

    sees = torch.zeros(length, length, dtype=torch.bool)
    start = 0
    for prompt, responses in zip(shape.prompts, shape.responses, strict=True):
        first, at = start, start + prompt
        sees[start:at, start:at] = torch.ones(prompt, prompt, dtype=torch.bool).tril()
        for own in (length - 1 for length in responses):
            sees[at : at + own, first : first + prompt] = True
            sees[at : at + own, at : at + own] = torch.ones(own, own, dtype=torch.bool).tril()
            at += own
        start = at
    assert start == length
    return sees.to(device)


def _masked(given: list[Any], sees: Any) -> Any:
    query, key, value = given
    shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    scores = (query @ key.transpose(-1, -2)) * query.shape[-1] ** -0.5
    return (scores.masked_fill(~sees, float("-inf")).softmax(-1) @ value).transpose(1, 2)


def _timed(case: AttentionCase, device: str) -> Row:
    """The best of some rounds behind one that warms up."""
    found = [attention_seconds(case, device) for _ in range(2 if device == "cpu" else 1 + ROUNDS)][1:]
    plain, own = min(plain for plain, _ in found), min(own for _, own in found)
    pairs = case.pairs / case.plain_pairs
    # Two products forward and five backward, of 2 x width operations each.
    flops = 14 * case.width * case.heads * case.plain_pairs
    tera = flops / plain / 1e12 if device == "cuda" else None
    return {"ok": True, "plain_ms": plain * 1e3, "own_ms": own * 1e3, "own_over_plain": own / plain,
            "pairs_over_plain": pairs, "plain_tflops": tera}  # fmt: skip
