"""A saved state, gone on with under another ZeRO stage, against the step without a restart."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from _rows import Place, Row, attempt
from _runs import Outcomes, config, gap, make_subject, one, run_all, take

CASES = (("bfloat16", 3, 2), ("bfloat16", 2, 1), ("bfloat16", 1, 3), ("float32", 3, 2))
"""Number type, ZeRO stage that wrote, and that goes on. ZeRO 1 in bfloat16 is a class of its own in DeepSpeed."""
REHEARSED = CASES[1:2] + CASES[3:]
SHARES = {"float32": 0.1, "bfloat16": 0.25}
"""Of what the step moved the probe's log-probs by, in the mean: so far the two may be apart, for gradients are added up
in any order. Moments that are lost put them apart by 0.84 of it, a step that is counted anew by 0.57.
"""
LR = 1e-3  # so that a step moves more than bfloat16 rounds away


def checks(place: Place) -> Iterator[Row]:
    """One row for each case. On a GPU all that wrote run at a time, and then all that go on."""
    subject = make_subject(place.scratch / "policy", rehearses=place.rehearses)
    beside, cases, wrote, goes_on = not place.rehearses, REHEARSED if place.rehearses else CASES, {}, {}
    for dtype, old, new in cases:
        name, state = f"{dtype}-{old}", place.scratch / f"{dtype}-{old}.state"
        cfg = config(place.device, dtype=dtype, zero_stage=old, lr=LR)
        wrote[name] = partial(take, subject, place.scratch / name, cfg, saved=state)
        cfg = config(place.device, dtype=dtype, zero_stage=new, lr=LR)
        goes_on[f"{name}-{new}"] = partial(take, subject, place.scratch / f"{name}-{new}", cfg, restored=state)
    found = run_all(wrote, beside=beside) | run_all(goes_on, beside=beside)
    for dtype, old, new in cases:
        check = f"ZeRO {old} goes on as ZeRO {new}, {dtype}"
        yield attempt(check, partial(_gone_on, found, f"{dtype}-{old}", f"{dtype}-{old}-{new}", SHARES[dtype]))


def _gone_on(outcomes: Outcomes, name: str, again: str, share: float) -> Row:
    whole, resumed = one(outcomes, name), one(outcomes, again)
    moved = gap(whole.probe, whole.before, largest=False)
    read = gap(resumed.before, whole.before, largest=False)
    apart = gap(resumed.probe, whole.probe, largest=False)
    norm = abs(resumed.norms[-1] / whole.norms[-1] - 1)
    ok = max(apart, read) <= share * moved
    return {"ok": ok, "moved": moved, "gap": apart, "gap_as_read": read, "norm_gap": norm}
