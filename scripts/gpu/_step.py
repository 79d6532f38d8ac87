"""A learner's step of a policy of Qwen2.5-1.5B's shape: tokens per second, where time goes, memory against the plan.

The rank's own code, in this process, so that its device can be asked. Operations are those of the model, without what
recomputing takes: 6 for each number of the layers and each token that is read, 6 for each number of the
output layer and each token in the loss, and 12 x width of the queries for each pair of tokens in each layer.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from _rows import GIB, OVER, Place, Row, apart, attempt
from rank_here import PartClock, random_groups, rank_here

from overlap.config.fields import Config, ModelConfig, RunConfig
from overlap.config.learn import LearnConfig
from overlap.config.rollout import RolloutConfig
from overlap.placement.devices import devices_here, free_memory
from overlap.placement.fit import planned_seats
from overlap.placement.memory import GPU_OWN, LEARNING, rank_items
from overlap.placement.planned_run import PlannedRun
from overlap.placement.shapes import read_shape

PEAKS = {"H100 PCIe": 756.0, "H100": 989.0, "H200": 989.0, "H800": 989.0, "B200": 2250.0, "A100": 312.0, "L40S": 362.0}
"""Dense bfloat16 TFLOP/s of the data sheet, by a part of the device's name; the first that fits."""
SHAPES: dict[str, dict[str, Any]] = {
    "cuda": {"vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
             "num_attention_heads": 12, "num_key_value_heads": 2, "max_position_embeddings": 32768},
    "cpu": {"vocab_size": 1024, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048},
}  # fmt: skip
BATCHES = {
    "one response of 16K": ([(2048, (16384,))], 2, 4),
    "eight of 2K behind a prompt": ([(1024, (2176,) * 8)], 1, 3),
    "four passes": ([(1024, (2176,) * 8)] * 4, 1, 2),
}
"""Prompts with the lengths of their responses; steps that warm up, of which the first compiles, and that are timed."""
PASS = 18432  # tokens of a micro-batch; a rehearsal has a 32nd of each
KERNELS = {"compiled": True, "eager": False}
LOSS_GAP, NORM_GAP = 5e-3, 2e-2
"""Of the loss, and of the gradient's norm by its share: the rounding of other kernels in bfloat16."""


def checks(place: Place) -> Iterator[Row]:
    """Each way in a process of its own: ZeRO 1, as the recipe for one GPU has it, then (``long``) the default."""
    (made,) = apart(_made, place, "a random policy")
    yield made
    if not made["ok"]:
        return
    rows = list[Row]()
    for zero in (1, 2) if place.long and not place.rehearses else (1,):
        for kernels in KERNELS if zero == 1 else ("compiled",):
            for row in apart(_measure, place, zero, kernels):
                rows.append(row)
                yield row
    yield attempt("compiled against eager", partial(_against_eager, {row["check"]: row for row in rows}))


def _against_eager(rows: dict[str, Row]) -> Row:
    """Losses and gradient norms of all steps from the same seeds, and how much faster the medians are."""
    row: Row = {"ok": True, "loss_gap": 0.0, "norm_gap": 0.0, "faster": {}}
    for what in BATCHES:
        ours, theirs = (rows[f"ZeRO 1, {kernels}, {what}"] for kernels in KERNELS)
        losses, norms = (zip(ours[name], theirs[name], strict=True) for name in ("losses", "grad_norms"))
        row["loss_gap"] = max(row["loss_gap"], *(abs(a - b) for a, b in losses))
        row["norm_gap"] = max(row["norm_gap"], *(abs(a / b - 1) for a, b in norms))
        row["faster"][what] = round(theirs["step_s"] / ours["step_s"], 3)
    return row | {"ok": row["loss_gap"] <= LOSS_GAP and row["norm_gap"] <= NORM_GAP}


def _made(place: Place, check: str) -> Iterator[Row]:
    yield attempt(check, partial(_make, place))


def _make(place: Place) -> Row:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = SHAPES[place.device]
    with torch.device(place.device):
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(Qwen2Config(**shape, tie_word_embeddings=True, dtype="bfloat16")).to(torch.bfloat16)
    model.save_pretrained(place.scratch / "policy")
    return {"ok": True, "parameters": sum(p.numel() for p in model.parameters())}


def _config(place: Place, zero: int) -> Config:
    scale = 32 if place.rehearses else 1
    return Config(
        model=ModelConfig(dtype="bfloat16", prompt_tokens=2048 // scale, response_tokens=16384 // scale),
        rollout=RolloutConfig(temperature=0.6, max_staleness=0, gpu_memory=0.8),
        learn=LearnConfig(
            zero_stage=zero,  # type: ignore[arg-type]
            recompute="always", micro_batch_tokens=PASS // scale,
        ),
        run=RunConfig(device=place.device),  # type: ignore[arg-type]
    )  # fmt: skip


def _measure(place: Place, zero: int, kernels: str) -> Iterator[Row]:
    """The rows of one ZeRO stage and kind of kernels."""
    import torch

    cfg, cuda = _config(place, zero), place.device == "cuda"
    name = f"ZeRO {zero}, {kernels}"
    began = time.monotonic()
    made = KERNELS[kernels]
    rank = rank_here(cfg, place.scratch / "policy", place.scratch, kernels=not place.rehearses, compiles=made)
    told = {"start_s": time.monotonic() - began, "compiled": rank._trainer.compiled}
    yield {"check": f"{name}, start", "ok": True, **told, **_memory(cuda)}
    clock = PartClock(rank, cuda)
    version = 0
    for what, (lengths, warm, timed) in BATCHES.items():
        groups = random_groups(_scaled(lengths, place), SHAPES[place.device]["vocab_size"])
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        steps = (1, 1) if place.rehearses else (warm, timed)
        yield attempt(f"{name}, {what}", partial(_timed, rank, clock, groups, place, version, *steps))
        version += sum(steps)
    yield attempt(f"{name}, memory against the plan", partial(_against_plan, cfg, place, cuda))
    yield attempt(f"{name}, kernels of a step", partial(_profiled, rank, groups[:1], version + 1, cuda))
    if place.long or place.rehearses:
        yield attempt(f"{name}, states away and back", partial(_moved, rank, cuda))


def _scaled(lengths: Sequence[tuple[int, tuple[int, ...]]], place: Place) -> list[tuple[int, tuple[int, ...]]]:
    scale = 32 if place.rehearses else 1
    return [(prompt // scale, tuple(length // scale for length in responses)) for prompt, responses in lengths]


def _timed(rank: Any, clock: PartClock, groups: list[Any], place: Place, version: int, warm: int, timed: int) -> Row:
    """The median of the steps behind those that warm up; ``parts_ms`` are those of the last step, ``graphs`` all that
    were compiled so far.
    """
    from torch._dynamo.utils import counters

    took, losses, norms = [], [], []
    for number in range(warm + timed):
        clock.parts.clear()
        began = time.perf_counter()
        metrics, _ = rank.step(groups, version + number + 1)
        clock.wait()
        took.append(time.perf_counter() - began)
        losses.append(metrics["loss"])
        norms.append(metrics["grad_norm"])
    step = statistics.median(took[warm:])
    tokens = sum(len(g.prompt) + sum(len(r.tokens) - 1 for r in g.responses) for g in groups)
    flops, peak = _flops(groups, SHAPES[place.device]), _peak(place)
    return {
        "ok": all(abs(figure) < 1e6 for figure in (*losses, *norms)),
        "step_s": step,
        "first_s": took[0],
        "steps_s": [round(one, 4) for one in took],
        "tokens": tokens,
        "tokens_per_s": tokens / step,
        "model_tflop": flops / 1e12,
        "tflops": flops / step / 1e12,
        "peak_tflops": peak,
        "mfu": flops / step / 1e12 / peak if peak else None,
        "parts_ms": clock.milliseconds(),
        "losses": losses,
        "grad_norms": norms,
        "graphs": counters["stats"]["unique_graphs"],
        **_memory(place.device == "cuda"),
    }


def _flops(groups: list[Any], shape: dict[str, Any]) -> float:
    """Of one step, by the formula at the top; a prompt that is shared is read once."""
    hidden, layers = shape["hidden_size"], shape["num_hidden_layers"]
    keys = hidden // shape["num_attention_heads"] * shape["num_key_value_heads"]
    numbers = layers * (2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * shape["intermediate_size"])
    read = pairs = counted = 0
    for group in groups:
        prompt, own = len(group.prompt), [len(r.tokens) - 1 for r in group.responses]
        read += prompt + sum(own)
        counted += sum(r.counted for r in group.responses)
        pairs += prompt * (prompt + 1) // 2 + sum(prompt * n + n * (n + 1) // 2 for n in own)
    return 6.0 * (numbers * read + shape["vocab_size"] * hidden * counted) + 12.0 * layers * hidden * pairs


def _peak(place: Place) -> float | None:
    import torch

    name = torch.cuda.get_device_name() if place.device == "cuda" else ""
    return next((peak for part, peak in PEAKS.items() if all(word in name for word in part.split())), None)


def _memory(cuda: bool) -> Row:
    """GiB: allocated and reserved at most since it was reset, and in use on the device, CUDA's own with it."""
    import torch

    if not cuda:
        return {}
    free, total = torch.cuda.mem_get_info()
    return {
        "allocated_gib": torch.cuda.max_memory_allocated() / GIB,
        "reserved_gib": torch.cuda.max_memory_reserved() / GIB,
        "device_gib": (total - free) / GIB,
    }


def _against_plan(cfg: Config, place: Place, cuda: bool) -> Row:
    """What the plan has for a rank in its step, item by item, against the most that torch had, with CUDA's own."""
    import torch

    run = PlannedRun(cfg, read_shape(place.scratch / "policy"))
    seats = planned_seats(cfg, devices_here(place.device), free_memory())
    items = rank_items(run, LEARNING, seats if seats.devices else None)[0]
    planned = sum(items.values()) + GPU_OWN
    row = {"planned_gib": planned / GIB, "items_gib": {name: round(b / GIB, 3) for name, b in items.items() if b}}
    if not cuda:
        return {"ok": None, "why": "a CPU's plan is in tests/e2e/test_memory.py", **row}
    free, total = torch.cuda.mem_get_info()
    now = torch.cuda.memory_reserved()
    used = total - free - now + torch.cuda.max_memory_reserved()
    own = total - free - now
    row |= {"used_gib": used / GIB, "own_gib": own / GIB, "allocated_gib": torch.cuda.max_memory_allocated() / GIB}
    return {"ok": used <= planned * (1 + OVER), "planned_over_used": planned / used, **row}


def _profiled(rank: Any, groups: list[Any], version: int, cuda: bool) -> Row:
    """The kernels that took longest in one step, with their milliseconds and calls."""
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CUDA] if cuda else [ProfilerActivity.CPU]
    with profile(activities=kinds) as found:
        rank.step(groups, version)
    attribute = "self_device_time_total" if cuda else "self_cpu_time_total"
    events = sorted(found.key_averages(), key=lambda event: -getattr(event, attribute))
    whole = sum(getattr(event, attribute) for event in events) / 1e3
    top = [[event.key[:90], round(getattr(event, attribute) / 1e3, 2), event.count] for event in events[:25]]
    return {"ok": True, "whole_ms": whole, "top": top}


def _moved(rank: Any, cuda: bool) -> Row:
    """All of the learner to the host's memory and back: what was freed, the seconds, and whether it is as it was."""
    import torch

    model, residency = rank._trainer.model, rank._trainer.residency_of()

    def held() -> list[Any]:
        return list({t.data_ptr(): t for t in (*model.states(), *model.parameters()) if t.numel()}.values())

    with residency.policy():
        copies = [tensor.detach().clone() for tensor in held()]
        size = sum(copy.nbytes for copy in copies)
        gc.collect()
        before, began = _memory(cuda), time.monotonic()
    residency.sleep()
    left, after = time.monotonic() - began, _memory(cuda)
    began = time.monotonic()
    with residency.policy():
        back = time.monotonic() - began
        found = held()
        same = len(found) == len(copies) and all(map(torch.equal, found, copies))
    freed = before["device_gib"] - after["device_gib"] if cuda else None
    ok = same and (freed is None or freed > 0)
    return {"ok": ok, "same": same, "held_gib": size / GIB, "freed_gib": freed, "leave_s": left, "come_back_s": back}
