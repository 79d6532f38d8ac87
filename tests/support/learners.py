"""Real learners of a tiny policy: a configuration, seeded batches, a run that leaves nothing behind, and what it says
and sends.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from overlap.config.fields import Config, ModelConfig, RunConfig
from overlap.config.learn import CriticConfig, LearnConfig
from overlap.config.rollout import RolloutConfig
from overlap.core import Batch, Group, Prompt, Request, Scored, Trajectory, VersionSpan
from overlap.learner.learner import ProcessLearner
from overlap.process.process_tree import alive, identify

PROBE = tuple(range(30, 80))
LEARN = {"lr": 1e-2, "grad_clip": 0.5, "weight_decay": 0.1, "micro_batch_tokens": 96}
CRITIC = {"lr": 1e-2, "lambda_policy": 0.9}


def config(*, critic=None, **learn) -> Config:
    dtype = learn.pop("dtype", "float32")
    return Config(
        model=ModelConfig(dtype=dtype, prompt_tokens=32, response_tokens=32),
        rollout=RolloutConfig(temperature=0.8, max_staleness=9),
        learn=LearnConfig(**(LEARN | learn)),
        critic=CriticConfig(**(critic or {})),
        run=RunConfig(device="cpu"),
    )


def ppo(*, critic: Any = None, **learn: Any) -> Config:
    learn = {"advantage": "gae", "truncated": "bootstrap", "updates_per_step": 2} | learn
    return config(critic=CRITIC | (critic or {}), normalize_advantages=True, **learn)


def adapted(**learn: Any) -> Config:
    return config(**({"lora_rank": 4, "kl_coef": 0.1} | learn))


def make_batch(seed: int = 0, advantage: float = 1.0, *, version: int | None = None) -> Batch:
    """For a learner of ``version``, by default the seed."""
    version, rng = seed if version is None else version, random.Random(seed)

    def scored(group: int, sample: int, prompt: Prompt) -> Scored:
        count = rng.randint(1, 24)
        tokens = tuple(rng.randrange(259) for _ in range(count))
        logprobs = tuple(-5.0 - rng.random() for _ in range(count))
        spans = (VersionSpan(version, 0, count),)
        return Scored(Trajectory(Request(group, sample, prompt), tokens, logprobs, "", "stop", spans, 0.0, 1.0), 1.0)

    def group(number: int) -> Group:
        prompt = Prompt(f"p{number}", tuple(rng.randrange(259) for _ in range(rng.randint(2, 20))))
        signs = (advantage, -1.0, 0.5, -0.5)
        return Group(number, prompt, tuple(scored(number, i, prompt) for i in range(4)), signs)

    return Batch(version + 1, version, tuple(group(i) for i in range(4)))


def mixed_batch(version: int) -> Batch:
    """Some samples were cut off, and some were drawn by the version before."""
    rng = random.Random(100 + version)

    def some(scored: Scored) -> Scored:
        t = scored.trajectory
        age = rng.randrange(2) if version else 0
        spans = tuple(replace(span, version=version - age) for span in t.spans)
        return replace(scored, trajectory=replace(t, finish=rng.choice(("stop", "length")), spans=spans))

    made = make_batch(version)
    groups = (replace(group, samples=tuple(map(some, group.samples))) for group in made.groups)
    return replace(made, groups=tuple(groups))


def run(policy: Path, scratch: Path, cfg: Config, use, total_updates: int = 10, **other: Path | None):
    """Start a learner, use it, close it; nothing of it may be left afterwards. ``other``: checkpoints beside the
    policy's.
    """

    async def main():
        log = scratch / "log"
        learner = ProcessLearner(cfg, policy, scratch, log=log, total_updates=total_updates, **other)
        try:
            await learner.start()
            ranks = [identify(pid) for pid in learner.pids()]
            result = await use(learner)
        finally:
            await learner.close()
            await learner.close()
        return result, ranks

    shared_memory = ours_in_shm()
    result, ranks = asyncio.run(main())
    assert not [rank for rank in ranks if rank is not None and alive(rank)]
    assert not list(scratch.glob("learner-*"))
    assert ours_in_shm() == shared_memory
    return result


def told(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics that are numbers, without seconds and padding, in which runs alike may differ."""
    differ = ("_s", "padded_share")
    return {name: value for name, value in metrics.items() if not name.endswith(differ) and value == value}


def sent(info: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors that an engine would read."""
    import torch

    data, found = bytearray(Path(info["path"]).read_bytes()), {}
    for name, dtype, shape, offset in info["tensors"]:
        count = torch.Size(shape).numel()
        flat = torch.frombuffer(data, dtype=getattr(torch, dtype), count=count, offset=offset)
        found[name] = flat.view(shape)
    return found


async def published(learner: ProcessLearner, version: int) -> bytes:
    """All that an engine would read."""
    update = await learner.publish(version)
    data = _content(update.info["path"])
    await learner.retire(update)
    return data


def _content(path: str) -> bytes:
    return Path(path).read_bytes()


def distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Between two models of these tensors."""
    return sum((one[name] - other[name]).pow(2).sum().item() for name in one) ** 0.5


def ours_in_shm() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "deepspeed" in name or "allreduce" in name or "nccl" in name}
