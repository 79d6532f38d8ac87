"""slime, miles: a custom reward, and the filter that keeps our faults out of the mean of a group.

    --custom-rm-path sandbox.integrations.slime.reward --label-key tests
    --dynamic-sampling-filter-path sandbox.integrations.slime.judged_groups

The label of a row holds the tests. slime knows no missing reward: an exception of a reward function ends its run, None
breaks the tensor of the rewards, and `remove_sample` leaves a sample out of the loss, but not out of the mean of its
group. So what could not be judged gets `remove_sample`, and the mean of what was judged beside it, which moves no mean:
from the filter, which is the first that sees a group, or at once with `--group-rm`. Without either it gets 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from sandbox.integrations.code_reward import CodeReward, Unjudged


async def reward(args: Any, sample: Any, **kwargs: Any) -> Any:
    """1 where the program in the response passes all tests of the label, else 0; of a list of samples a list."""
    samples = sample if isinstance(sample, list) else [sample]
    found = await asyncio.gather(*map(_reward, samples))
    return _filled(found) if isinstance(sample, list) else _filled(found)[0]


def judged_groups(args: Any, samples: Sequence[Any], **kwargs: Any) -> bool:
    """Whether the rewards of a group teach: the judged ones differ, as slime's `check_reward_nonzero_std` asks of all.
    What could not be judged gets their mean.
    """
    flat = [one for sample in samples for one in (sample if isinstance(sample, list) else [sample])]
    for sample, filled in zip(flat, _filled([None if one.remove_sample else one.reward for one in flat]), strict=True):
        sample.reward = filled
    return len({sample.reward for sample in flat if not sample.remove_sample}) > 1


async def _reward(sample: Any) -> float | None:
    try:
        return await CodeReward().reward_later(sample.response, sample.label)
    except Unjudged:
        sample.remove_sample = True
        return None


def _filled(rewards: Sequence[float | None]) -> list[float]:
    judged = [reward for reward in rewards if reward is not None]
    mean = sum(judged) / len(judged) if judged else 0.0
    return [mean if reward is None else reward for reward in rewards]
