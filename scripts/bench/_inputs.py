"""What several benchmarks make an episode from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.server.chat import Budget

WIDE: Final = Budget(turns=1000, tokens=10**9, context=2000)
"""A budget that no episode of a benchmark reaches."""


def episode_config(policy: Path, sequences: int) -> Config:
    """Return the configuration of an engine on the CPU for episodes of a tiny policy."""
    settings = [f"model.policy={policy}", "model.dtype=float32", "run.device=cpu"]
    settings += ["model.prompt_tokens=1000", "model.response_tokens=1000", "learn.micro_batch_tokens=2000"]
    return load_config(None, [*settings, f"rollout.max_sequences={sequences}"])


@asynccontextmanager
async def free() -> AsyncIterator[None]:
    """Stand for a place in the engine that is always free."""
    yield
