"""Ranks of a ZeRO-3 learner that look at what loading by partitions makes: ``partition_ranks.py CASE FOLDER MEET``."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from learners import PROBE, config, make_batch
from live_bytes import LiveBytes
from rank_memory import resident
from rank_runs import run_ranks, tell

from overlap.core.errors import ConfigError
from overlap.learner import compiled, rank
from overlap.learner.micro_batch import flatten
from overlap.learner.model import choose_attention, load_policy, plain
from overlap.learner.processes import RankSpec, rank_environment
from overlap.learner.trainer import RankTrainer
from overlap.learner.zero.backend import ZeroBackend
from overlap.learner.zero.loading import gathered
from overlap.placement.seats import Placement, RankSeat
from overlap.process.process_tree import leave
from overlap.weights.full import full_tensors

CPU = torch.device("cpu")
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
STEPS: dict[str, dict[str, Any]] = {
    "a step": {},
    "a KL step": {"kl_coef": 0.1},
    "a PPO step": {"advantage": "gae", "critic": {"lr": 1e-2}},
}

COMPILED: dict[str, dict[str, Any]] = {
    "ZeRO 2, checkpointing": {"zero_stage": 2, "recompute": "always", "entropy_coef": 0.1},
    "ZeRO 3, checkpointing, KL": {"zero_stage": 3, "recompute": "always", "kl_coef": 0.1},
    "ZeRO 3, adapters": {"zero_stage": 3, "lora_rank": 4, "kl_coef": 0.1},
    "ZeRO 3, a critic": {"zero_stage": 3, "advantage": "gae", "critic": {"lr": 1e-2}},
}


def partition_ranks(world: int, case: str, folder: Path, meet: Path) -> list[Any]:
    """What each of ``world`` ranks finds; ``meet`` is a folder of their own."""
    return run_ranks(world, __file__, case, folder, folder=meet, environment=rank_environment(0, world))


def both(path: Path, dtype: str) -> tuple[Any, Any]:
    """The same checkpoint in partitions, and whole."""
    zero = ZeroBackend(config(dtype=dtype, ranks=WORLD, zero_stage=3))
    parts, whole = (
        load_policy(path, dtype=getattr(torch, dtype), temperature=0.8, device=CPU, backend=b) for b in (zero, None)
    )
    return parts, whole


def same(folder: Path) -> dict[str, dict[str, bool]]:
    """By checkpoint and number type, what is as it is without partitions."""
    found = {}
    for path in sorted(folder.iterdir()):
        for dtype in ("float32", "bfloat16"):
            found[f"{path.name} {dtype}"] = compare(*both(path, dtype))
    return found


def compare(parts: Any, whole: Any) -> dict[str, bool]:
    named, buffers = dict(whole.policy.named_parameters()), dict(whole.policy.named_buffers())
    ours = dict(parts.policy.named_buffers())
    held = sum(p.ds_tensor.numel() for p in parts.parameters())
    padding = WORLD * len(named)
    found = {
        "nothing is whole": all(not p.numel() for p in parts.parameters()),
        "a rank has its part": 0 <= held * WORLD - sum(p.numel() for p in named.values()) <= padding,
        "names": [name for name, _ in parts.policy.named_parameters()] == list(named),
        "tensors": all(equal(t, named[name]) for name, t in full_tensors(parts.policy, 3)),
        "buffers": ours.keys() == buffers.keys() and all(equal(t, buffers[name]) for name, t in ours.items()),
        "ties": tied(parts) == tied(whole),
    }
    with torch.no_grad(), gathered(parts):
        found["attention"] = choose_attention(parts, CPU) == choose_attention(whole, CPU)
        found["log-probs"] = torch.equal(*(m(plain(list(PROBE), CPU))[0] for m in (parts, whole)))
    return found | {"let go": all(not p.numel() for p in parts.parameters())}


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def tied(model: Any) -> bool:
    policy = model.policy
    return policy.get_output_embeddings().weight is policy.get_input_embeddings().weight


def steps(folder: Path) -> dict[str, list[bool]]:
    """Two steps of each kind: whether metrics, then whether weights are those after a plain load."""
    found = {}
    for kind, learn in STEPS.items():
        for dtype in ("float32", "bfloat16"):
            results = []
            for partitions in (True, False):
                cfg = config(ranks=WORLD, zero_stage=3, dtype=dtype, **learn)
                results.append(two_steps(folder, cfg, partitions))
            (told, weights), (expected, others) = results
            found[f"{kind} {dtype}"] = [
                told == expected and len(told) == 2,
                weights.keys() == others.keys() and all(equal(weights[name], others[name]) for name in weights),
            ]
    return found


def compiled_steps(folder: Path) -> dict[str, list[Any]]:
    """Of each kind what two steps say, operation by operation and compiled. In this order: a family's function is
    replaced for the whole process.
    """
    compiled.BACKEND = "aot_eager"  # all of it but the kernels, for which g++ takes a minute
    found: dict[str, list[Any]] = {kind: [] for kind in COMPILED}
    for worth in (False, True):
        compiled.worth_compiling = lambda device, worth=worth: worth
        for kind, learn in COMPILED.items():
            cfg = config(ranks=WORLD, **learn)
            found[kind].append(two_steps(folder, cfg, cfg.learn.zero_stage == 3)[0])
    return found


def two_steps(policy: Path, cfg: Any, partitions: bool) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    backend = ZeroBackend(cfg)
    backend.partitions = partitions
    made = RankTrainer(cfg, policy, policy, CPU, 10, backend)
    told = [made.step(flatten(make_batch(version))) for version in range(2)]
    told = [{n: v for n, v in one.items() if not n.endswith("_s") and v == v} for one in told]
    weights = {name: t.clone() for name, t in made.full_tensors()}
    if made.critic is not None:
        critic = full_tensors(made.critic.model.module, 3)
        weights |= {f"critic {name}": t.clone() for name, t in critic}
    return told, weights


def refused(folder: Path) -> dict[str, list[str]]:
    """By checkpoint, what is said of it in partitions, and whole."""
    zero = ZeroBackend(config(ranks=WORLD, zero_stage=3))
    return {path.name: [refusal(path, zero), refusal(path, None)] for path in sorted(folder.iterdir())}


def refusal(path: Path, backend: ZeroBackend | None) -> str:
    try:
        load_policy(path, dtype=torch.float32, temperature=1.0, device=CPU, backend=backend)
    except ConfigError as error:
        return str(error)
    return "not refused"


class Resident(threading.Thread):
    """The most bytes of anonymous and shared memory that this process has had resident, seen each millisecond.

    A rank's heap gives nothing back (``rank_environment``), so a peak between two looks is seen in the end.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._done = threading.Event()
        self.most = resident()

    def run(self) -> None:
        while not self._done.wait(1e-3):
            self.most = max(self.most, resident())

    def __enter__(self) -> Resident:
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._done.set()
        self.join()
        self.most = max(self.most, resident())


def peak(folder: Path, dtype: str) -> dict[str, int]:
    """Bytes: resident before and at most while a model is loaded, its own, and of what the start-up check makes."""
    zero = ZeroBackend(config(dtype=dtype, ranks=WORLD, zero_stage=3))
    both(folder / "tiny", dtype)  # what is imported and started along the way is the process's own
    gc.collect()
    with Resident() as seen:
        before = seen.most
        model = load_policy(folder / "large", dtype=getattr(torch, dtype), temperature=1.0, device=CPU, backend=zero)
    size = sum(p.ds_numel * p.element_size() for p in model.parameters())
    with LiveBytes() as checking, gathered(model):  # not by what is resident: the heap keeps the holes
        choose_attention(model, CPU)
    return {"before": before, "most": seen.most, "model": size, "check": checking.peak}


def main() -> None:
    case, folder, meet = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    mine = int(os.environ["RANK"])
    placed = Placement(ranks=tuple(RankSeat(number, config().run.seed) for number in range(WORLD)))
    spec = RankSpec(mine, meet, folder, folder, config(), 10, placed)
    rank._join(spec, rank._device(spec))
    ZeroBackend(config()).join(CPU)
    cases: dict[str, Callable[[Path], Any]] = {
        "same": same,
        "steps": steps,
        "refused": refused,
        "compiled": compiled_steps,
    }
    cases["peak bfloat16"] = partial(peak, dtype="bfloat16")
    tell(meet, cases[case](folder))
    sys.stdout.flush()
    leave(0)  # as a rank: threads of the process group may wait


if __name__ == "__main__":
    main()
