"""The learner's attention on a device: against softmax under a mask, and its time beside plain causal attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from _attention_cost import AttentionCase, attention_seconds
from _rows import Place, Row, attempt
from attention_exact import PackedShape, attention_errors

HEADS = ((12, 2, 128), (14, 2, 64), (16, 16, 128), (4, 1, 256), (6, 2, 80))
"""Query heads, key heads, width: first those of a policy of 1.5B."""
LENGTHS = (2048, 8192, 32768)
PROMPTS, GROUP = (512, 4096), 8
"""Tokens of a prompt, and its responses: all of one length, or of eight lengths up to it."""
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
    found = [("prompt 16, responses 64 alike", AttentionCase(16, (64,) * 3, 512))] if place.rehearses else _cases()
    for name, case in found:
        real = replace(case, heads=HEADS[0][0], keys=HEADS[0][1], width=HEADS[0][2])
        yield attempt(name, partial(_timed, real, place.device))


def _cases() -> Iterator[tuple[str, AttentionCase]]:
    """By name: each prompt with each length, all responses alike or spread."""
    for prompt in PROMPTS:
        for length in LENGTHS:
            spread = tuple(length * n // GROUP for n in range(1, GROUP + 1))
            for kind, lengths in (("alike", (length,) * GROUP), ("spread", spread)):
                case = AttentionCase(prompt, lengths, max(BUDGET, prompt + length), dtype="bfloat16")
                yield f"prompt {prompt}, responses {length} {kind}", case


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
