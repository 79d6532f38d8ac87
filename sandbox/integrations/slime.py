"""slime, miles: a custom reward.

    --custom-rm-path sandbox.integrations.slime.reward --label-key tests

The label of a row holds the tests. What could not be judged gets the reward 0 and `remove_sample`, which leaves it out
of the loss; it still counts in the mean of its group.
"""

from __future__ import annotations

from typing import Any

from sandbox.integrations.code_reward import CodeReward, Unjudged


async def reward(args: Any, sample: Any, **kwargs: Any) -> float:
    """1 where the program in the response passes all tests of the label, else 0."""
    try:
        return await CodeReward().reward_later(sample.response, sample.label)
    except Unjudged:
        sample.remove_sample = True
        return 0.0
