"""Resident bytes of real learner ranks, phase by phase: ``python rank_memory.py`` is one rank, told by the environment.

Blocks of memory are given back to the system as soon as they are freed (``MALLOC``), so that what is resident is what
is in use. What the process needs for itself (libraries, threads, and what a step with a tiny policy and a pass over one
layer leave) is measured in it before and taken off.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rank_runs import run_ranks, tell

from overlap.config.load import load_config
from overlap.process.process_tree import leave

MALLOC = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_MAX_": "1000000"}
TOKENS = 256
"""Of a response; a quarter as many are in its prompt."""


def measure(settings: Sequence[str], policy: Path, layer: Path, tiny: Path, scratch: Path) -> list[dict[str, int]]:
    """What each rank of the configuration says: bytes by "start", "rest" (after a step), "critic" and "actor" (most in
    these phases of a step).
    """
    environment = MALLOC | {
        "SETTINGS": json.dumps(list(settings)),
        "POLICY": str(policy),
        "LAYER": str(layer),
        "TINY": str(tiny),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    world = load_config(None, list(settings)).learn.ranks
    return run_ranks(world, __file__, folder=scratch, environment=environment)


def resident() -> int:
    """Bytes of this process in memory, mapped files left out."""
    rows = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * sum(int(rows[name].split()[0]) for name in ("RssAnon", "RssShmem"))


def _most() -> int:
    rows = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * (int(rows["VmHWM"].split()[0]) - int(rows["RssFile"].split()[0]))


def _forget_most() -> None:
    _settle()
    Path("/proc/self/clear_refs").write_text("5")


def _settle() -> None:
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def _groups(cfg: Any) -> list[Any]:
    """Two full micro-batches for each rank."""
    from overlap.learner.micro_batch import PromptGroup, Response

    rng = random.Random(0)

    def tokens(count: int) -> array[int]:
        return array("i", [rng.randrange(200) for _ in range(count)])

    count = 2 * cfg.learn.ranks * cfg.learn.micro_batch_tokens // (TOKENS + TOKENS // 4)
    made = [Response(tokens(TOKENS), array("f", [-5.0] * TOKENS), rng.choice((0.0, 1.0))) for _ in range(count)]
    return [PromptGroup(tokens(TOKENS // 4), (one,)) for one in made]


def _trainer(policy: str) -> Any:
    import torch

    from overlap.learner.trainer import RankTrainer
    from overlap.learner.zero.backend import ZeroBackend

    cfg = load_config(None, json.loads(os.environ["SETTINGS"]))
    backend, cpu = ZeroBackend(cfg), torch.device("cpu")
    backend.join(cpu)
    return RankTrainer(cfg, Path(policy), Path(policy), cpu, 10, backend)


def _read(groups: list[Any]) -> None:
    """A pass of plain torch over a layer like those of the policy: libraries keep room for what they computed last."""
    import torch

    from overlap.learner.micro_batch import MicroBatch, PromptGroup
    from overlap.learner.model import choose_attention, load_policy
    from overlap.learner.tensors import to_tensors

    cfg, cpu = load_config(None, json.loads(os.environ["SETTINGS"])), torch.device("cpu")
    model = load_policy(Path(os.environ["LAYER"]), dtype=getattr(torch, cfg.dtype), temperature=1.0, device=cpu)
    choose_attention(model, cpu)
    rows = tuple(PromptGroup(group.prompt, group.responses) for group in groups)
    tokens = cfg.learn.micro_batch_tokens
    fitting = rows[: tokens // max(row.length for row in rows)]
    model(to_tensors(MicroBatch(fitting), cpu))[0].sum().backward()


def rank(meet: Path) -> dict[str, int]:
    """Make a trainer, take a step, take another one; returns the bytes by phase."""
    import torch.distributed as dist

    number, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=number, world_size=world)
    small = _trainer(os.environ["TINY"])
    groups = _groups(small.cfg)
    small.step(groups)
    del small
    _read(groups)
    _settle()
    own, found = resident(), {}
    trainer = _trainer(os.environ["POLICY"])
    groups = _groups(trainer.cfg)
    _settle()
    found["own"], found["start"] = own, resident() - own
    trainer.step(groups)
    _settle()
    found["rest"] = resident() - own
    learn = trainer._learn

    def learn_alone(*given: Any) -> Any:
        found["critic"] = _most() - own
        _forget_most()
        return learn(*given)

    trainer._learn = learn_alone
    _forget_most()
    trainer.step(groups)
    found["actor"] = _most() - own
    return found


if __name__ == "__main__":
    tell(Path(sys.argv[1]), rank(Path(sys.argv[1])))
    leave(0)
