"""verl: a custom reward function.

    reward.custom_reward_function.path=pkg://sandbox.rewards.verl
    reward.custom_reward_function.name=compute_code_score          (or compute_code_score_async)

`ground_truth` of the data holds the tests. verl has no reward for what could not be judged: the function raises
Unjudged, unless `reward_kwargs` has `unjudged`, the score to give instead; `judged` in the result tells which were.
"""

from __future__ import annotations

import asyncio
from typing import Any

from sandbox.rewards.code_reward import CodeReward, Unjudged


def compute_code_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    *,
    unjudged: float | None = None,
    **settings: Any,
) -> dict[str, float]:
    """{"score", "acc", "judged"} of an answer. ``settings``: fields of CodeReward, from `reward_kwargs`."""
    return asyncio.run(
        compute_code_score_async(data_source, solution_str, ground_truth, extra_info, unjudged=unjudged, **settings)
    )


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
    """The same, for verl's reward loop. The arguments of reward models are not used."""
    try:
        score = await CodeReward(**settings).reward_later(solution_str, ground_truth)
    except Unjudged:
        if unjudged is None:
            raise
        return {"score": unjudged, "acc": 0.0, "judged": 0.0}
    return {"score": score, "acc": float(score == 1.0), "judged": 1.0}
