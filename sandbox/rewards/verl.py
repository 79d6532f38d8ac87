"""verl: a custom reward function.

    reward.custom_reward_function.path=pkg://sandbox.rewards.verl
    reward.custom_reward_function.name=compute_code_score          (or compute_code_score_async)

`ground_truth` of the data holds the tests. verl has no reward for what could not be judged: the function raises
Unjudged, unless `reward_kwargs` has `unjudged`, the score to give instead; `judged` in the result tells which were.
"""

from __future__ import annotations

import asyncio
from functools import wraps
from typing import Any

from sandbox.rewards.code_reward import CodeReward, Unjudged


async def compute_code_score_async(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    *,
    unjudged: float | None = None,
    reward_router_address: Any = None,
    reward_model_tokenizer: Any = None,
    **settings: Any,
) -> dict[str, float]:
    """{"score", "acc", "judged"} of an answer, for verl's reward loop. ``settings``: fields of CodeReward, from
    `reward_kwargs`. The arguments of reward models are not used.
    """
    try:
        score = await CodeReward(**settings).reward_later(solution_str, ground_truth)
    except Unjudged:
        if unjudged is None:
            raise
        return {"score": unjudged, "acc": 0.0, "judged": 0.0}
    return {"score": score, "acc": float(score == 1.0), "judged": 1.0}


@wraps(compute_code_score_async, assigned=())
def compute_code_score(*given: Any, **named: Any) -> dict[str, float]:
    """The same, for callers without a loop."""
    return asyncio.run(compute_code_score_async(*given, **named))
