"""Real learners of a tiny policy: a configuration, seeded batches, and a run that leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

from overlap.config import Config, CriticConfig, LearnConfig, ModelConfig, RolloutConfig, RunConfig
from overlap.core import Batch, Group, Prompt, Request, Scored, Trajectory, VersionSpan
from overlap.learner import ProcessLearner
from overlap.process import alive, identify

PROBE = tuple(range(30, 80))
LEARN = {"lr": 1e-2, "grad_clip": 0.5, "weight_decay": 0.1, "micro_batch_tokens": 96}


def config(*, critic=None, **learn) -> Config:
    dtype = learn.pop("dtype", "float32")
    return Config(
        model=ModelConfig(dtype=dtype, prompt_tokens=32, response_tokens=32),
        rollout=RolloutConfig(temperature=0.8, max_staleness=9),
        learn=LearnConfig(**(LEARN | learn)),
        critic=CriticConfig(**(critic or {})),
        run=RunConfig(device="cpu"),
    )


def make_batch(version: int = 0, advantage: float = 1.0) -> Batch:
    rng = random.Random(version)

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


def run(policy: Path, scratch: Path, cfg: Config, use, total_updates: int = 10, critic: Path | None = None):
    """Start a learner, use it, close it; nothing of it may be left afterwards."""

    async def main():
        log = scratch / "log"
        learner = ProcessLearner(cfg, policy, scratch, critic=critic, log=log, total_updates=total_updates)
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


def ours_in_shm() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "deepspeed" in name or "allreduce" in name or "nccl" in name}
