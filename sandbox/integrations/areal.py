"""AReaL: a reward function for RLVRWorkflow.

    RLVRWorkflow(reward_fn="sandbox.integrations.areal.reward", ...)

A column of the data holds the tests. For what could not be judged it raises Unjudged: AReaL asks again, then rejects
the rollout. Each process of its pool that calls it opens a pool of SANDBOX_WORKERS; with many, use SANDBOX_URL.
"""

from __future__ import annotations

from typing import Any

from sandbox.integrations.code_reward import CodeReward, Row


def reward(prompt: str, completions: str, prompt_ids: Any, completion_ids: Any, **row: Any) -> float:
    """1 where the program in the completion passes all tests of its row, else 0."""
    return CodeReward().reward(completions, Row(row))
