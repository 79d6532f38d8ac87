"""The learner's attention on a device: against softmax under a mask, and its time beside plain causal attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from _rows import Place, Row, attempt
from attention import cases as bench_cases
from attention_cost import AttentionCase, attention_seconds
from attention_exact import PackedShape, attention_errors

HEADS = ((12, 2, 128), (14, 2, 64), (16, 16, 128), (4, 1, 256), (6, 2, 80))
"""Query heads, key heads, width: first those of a policy of 1.5B."""
LENGTHS = {"cuda": (2048, 8192, 32768), "cpu": (64,)}
BUDGET = 36864
BOUNDS = {"bfloat16": 1e-2, "float32": 1e-4}
"""Of the norm of the difference from float32 under a mask, over that one's norm; it is 3e-3 in bfloat16 on a CPU."""
ROUNDS = 5


def checks(place: Place) -> Iterator[Row]:
    """Equality first, for each kind of heads and both number types, then seconds."""
    shape = PackedShape((300, 17, 129), ((256, 1, 77), (400,), (3, 128, 250, 31)))
    if place.rehearses:
        shape = PackedShape((30, 5), ((20, 1, 7), (9,)))
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


def _equal(shape: PackedShape, heads: tuple[int, int, int], dtype: str, device: str) -> Row:
    errors = attention_errors(shape, heads, dtype, device)
    return {"ok": max(errors.values()) <= BOUNDS[dtype], **errors}


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
