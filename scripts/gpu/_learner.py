"""The learner alone on a device, against the same steps on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from _rows import Place, Row, attempt
from _runs import Outcomes, config, gap, make_subject, one, run_all, take

BOUNDS = {"float32": 5e-3, "bfloat16": 0.15}
"""Largest and mean difference of the probe's log-probs that are the rounding of other kernels, nats; wrong positions
make 0.3 in the mean, a mask that leaks 0.8. In float32 it is Adam's: its first steps are of one size whatever the
gradient's, so where that is nearly 0 its rounding decides on the direction (an H200: 2.1e-3, where loss and norm of the
gradient agree to 7e-7 and 7e-6).
"""


def checks(place: Place) -> Iterator[Row]:
    """One row after another. What is told by the device's memory has the device alone."""
    device, beside, stages = place.device, not place.rehearses, (3,) if place.rehearses else (1, 2, 3)
    subject = make_subject(place.scratch / "policy", rehearses=place.rehearses)
    asked = {
        "cpu": config("cpu"),
        "cpu, bfloat16": config("cpu", dtype="bfloat16"),
        **{f"ZeRO {zero}, float32": config(device, zero_stage=zero) for zero in stages},
    }
    runs = {name: partial(take, subject, place.scratch / name, cfg) for name, cfg in asked.items()}
    found = run_all(runs, beside=beside)
    for name in [name for name in asked if name.startswith("ZeRO")]:
        yield attempt(name, partial(compared, found, name, "cpu", "float32"))
    for name, learn in (
        ("bfloat16, shared prompts", {}),
        ("recomputed", {"recompute": "always"}),
        ("states asleep between steps", {"offload": "sleep"}),
    ):
        cfg = config(device, dtype="bfloat16", **learn)
        run = partial(take, subject, place.scratch / name, cfg, watched=True)
        found |= run_all({name: run}, beside=False)
        wanted = "bfloat16, shared prompts" if learn else "cpu, bfloat16"
        yield attempt(name, partial(compared, found, name, wanted, "bfloat16"))


def compared(outcomes: Outcomes, name: str, wanted: str, dtype: str) -> Row:
    """A run against the one whose steps it should have taken, and its memory, where that was to be less.

    Two runs of one configuration differ on a GPU by the order in which gradients are added up: that states come back
    as they were, and free memory meanwhile, is a check of the stage ``step``.
    """
    found, other = one(outcomes, name), one(outcomes, wanted)
    apart = gap(found.probe, other.probe, largest=dtype == "float32")
    loss = max(abs(a - b) for a, b in zip(found.losses, other.losses, strict=True))
    norm = max(abs(a / b - 1) for a, b in zip(found.norms, other.norms, strict=True))
    ok = apart <= BOUNDS[dtype] and norm <= (0.01 if dtype == "float32" else 0.1)
    if name == "recomputed" and found.peak_mib and other.peak_mib:
        ok = ok and found.peak_mib < other.peak_mib
    row = {"ok": ok, "gap": apart, "loss_gap": loss, "norm_gap": norm}
    return row | {"peak_mib": found.peak_mib, "other_peak_mib": other.peak_mib}
