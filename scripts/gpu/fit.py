"""Which policies fit on which GPUs, by the memory plan of `overlap train --dry-run`: no GPU is needed.

    PYTHONPATH=. python scripts/gpu/fit.py                      the tables of docs/machines.md
    PYTHONPATH=. python scripts/gpu/fit.py --response 4096      with shorter responses
    PYTHONPATH=. python scripts/gpu/fit.py --devices 4x48       on other hardware

A cell names the first settings that the plan accepts with ENOUGH sequences at once, or else those with the most, in
the order of their cost: states on the host while the engine samples, then sequences shared by ranks (SP), then the
optimizer on the host; within each, lower ZeRO stages, fewer GPUs an engine (TP) and more of a GPU for it first. Where
none is accepted, the last refusal stands below the table.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.core.errors import ConfigError
from overlap.placement.fit import check_fit, named_devices, planned_seats, sequences_at_once
from overlap.placement.memory import HOST
from overlap.placement.planned_run import PlannedRun
from overlap.placement.shapes import ModelShape, shape_of

GIB = 2**30
DEVICES = ("1x24", "1x80", "2x80", "8x80")
CARDS = (*(f"1x{size}" for size in (12, 16, 24, 32, 40, 48, 80, 96, 141, 192)), "2x80", "4x80", "8x80")
"""Hardware that can be had, the smallest first."""
ENOUGH = 32
PROMPT, RESPONSE, SHORT = 2048, 16384, 2048
RANK = 32
"""Of the adapters."""
_QWEN = {"max_position_embeddings": 131072, "num_key_value_heads": 8, "num_attention_heads": 40, "vocab_size": 152064}
POLICIES: dict[str, dict[str, Any]] = {
    "0.5B": {"hidden_size": 896, "num_hidden_layers": 24, "intermediate_size": 4864, "vocab_size": 151936}
    | {"num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "1.5B": {"hidden_size": 1536, "num_hidden_layers": 28, "intermediate_size": 8960, "vocab_size": 151936}
    | {"num_attention_heads": 12, "num_key_value_heads": 2},
    "7B": {"hidden_size": 3584, "num_hidden_layers": 28, "intermediate_size": 18944}
    | {"num_attention_heads": 28, "num_key_value_heads": 4},
    "14B": {"hidden_size": 5120, "num_hidden_layers": 48, "intermediate_size": 13824},
    "32B": {"hidden_size": 5120, "num_hidden_layers": 64, "intermediate_size": 27648},
}
"""Sizes of the Qwen2.5 family, as its configurations have them."""
GPU_MEMORY = (0.8, 0.6, 0.45, 0.3)


@dataclass(frozen=True)
class Fit:
    """Settings that are accepted, or why the last were not."""

    cfg: Config | None = None
    sequences: int = 0
    host: int = 0
    """Bytes of the machine's memory for states of the learner."""
    refusal: str = ""

    def __str__(self) -> str:
        if self.cfg is None:
            return "no"
        learn, rollout = self.cfg.learn, self.cfg.rollout
        told = {
            f"ZeRO {learn.zero_stage}": learn.ranks > 1 or learn.zero_stage > 1,
            f"TP {rollout.tensor_parallel}": rollout.tensor_parallel > 1,
            f"SP {learn.sequence_parallel}": learn.sequence_parallel > 1,
            "optimizer on the host": learn.offload == "cpu",
            f"engine {rollout.gpu_memory:.0%}": True,
            f"{self.sequences} at once": True,
            f"host {self.host / GIB:,.0f}": True,
        }
        return ", ".join(what for what, said in told.items() if said)


def settings(gpus: int) -> Iterator[dict[str, dict[str, Any]]]:
    """Those to try, the cheapest first."""
    powers = [n for n in (1, 2, 4, 8) if n <= gpus]
    ways = product(("sleep", "cpu"), powers, (1, 2, 3), powers, GPU_MEMORY, ("auto", "always"))
    for offload, parts, stage, parallel, memory, again in ways:
        yield {
            "rollout": {"tensor_parallel": parallel, "gpu_memory": memory, "replicas": 0},
            "learn": {"ranks": gpus, "zero_stage": stage, "sequence_parallel": parts}
            | {"offload": offload, "recompute": again},
        }


def fit(shape: ModelShape, devices: str, response: int, lora_rank: int = 0) -> Fit:
    """How a run of ``shape`` fits on ``devices`` ("8x80")."""
    best, there = Fit(), named_devices(devices)
    for tried in settings(len(there.names)):
        tried["learn"] |= {"lora_rank": lora_rank, "micro_batch_tokens": PROMPT + response}
        model = {"prompt_tokens": PROMPT, "response_tokens": response, "dtype": "bfloat16"}
        try:
            cfg = load_config(tried | {"model": model, "run": {"device": "cuda"}})
            run, seats = PlannedRun(cfg, shape), planned_seats(cfg, there)
            plan, sequences = check_fit(run, seats), sequences_at_once(run, seats)
        except ConfigError as error:
            best = best if best.cfg is not None else Fit(refusal=str(error))
            continue
        if sequences > best.sequences:
            best = Fit(cfg, sequences, sum(need.total for need in plan if need.place == HOST))
        if sequences >= ENOUGH:
            break
    return best


def smallest(shape: ModelShape, response: int, lora_rank: int) -> str:
    """The first of ``CARDS`` that ``shape`` fits on."""
    return next((card for card in CARDS if fit(shape, card, response, lora_rank).cfg is not None), "none")


def shape_of_policy(name: str) -> ModelShape:
    """The shape of one of ``POLICIES``."""
    return shape_of(_QWEN | POLICIES[name])


def table(devices: Sequence[str], response: int) -> Iterator[str]:
    """Lines of Markdown."""
    yield f"| policy | {' | '.join(devices)} |"
    yield f"|---{'|---' * len(devices)}|"
    refusals = []
    for name, rank in product(POLICIES, (0, RANK)):
        found = {d: fit(shape_of_policy(name), d, response, rank) for d in devices}
        what = f"{name}, {f'LoRA {rank}' if rank else 'full'}"
        yield f"| {what} | {' | '.join(map(str, found.values()))} |"
        refusals += [f"- {what} on {d}: {one.refusal}" for d, one in found.items() if one.refusal]
    yield from ["", *refusals]


def cards() -> Iterator[str]:
    """Lines of Markdown: the smallest hardware for each policy."""
    lengths = (SHORT, RESPONSE)
    heads = [f"{what}, {length:,}" for length in lengths for what in ("full", f"LoRA {RANK}")]
    yield f"| policy | {' | '.join(heads)} |"
    yield f"|---{'|---' * len(heads)}|"
    for name in POLICIES:
        shape = shape_of_policy(name)
        yield f"| {name} | {' | '.join(smallest(shape, n, rank) for n in lengths for rank in (0, RANK))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", nargs="+", default=DEVICES, metavar="NxGIB")
    parser.add_argument("--response", type=int, default=RESPONSE, metavar="TOKENS")
    given = parser.parse_args()
    try:
        for devices in given.devices:
            named_devices(devices)
        if given.response < 1:
            raise ConfigError("--response", given.response, "use 1 or more")
    except ConfigError as error:
        parser.error(str(error))
    print(*table(given.devices, given.response), "", *cards(), sep="\n")


if __name__ == "__main__":
    main()
