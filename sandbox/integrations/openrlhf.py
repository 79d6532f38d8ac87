"""OpenRLHF: a reward function in a file, this one.

    --reward.remote_url $(python -c "import sandbox.integrations.openrlhf as m; print(m.__file__)")
    --data.label_key tests

The label of a row holds the tests, as JSON. For what could not be judged the function raises Unjudged: OpenRLHF logs
that, and gives the sample no reward.
"""

from __future__ import annotations

from typing import Any

from sandbox.integrations.code_reward import CodeReward, Unjudged, answer_of


def reward_func(queries: list[str], prompts: list[str], labels: list[Any], **kwargs: Any) -> dict[str, Any]:
    """{"rewards", "scores", "extra_logs"}: numbers for one sample, lists for several."""
    answers = (answer_of(query, prompt) for query, prompt in zip(queries, prompts, strict=True))
    rewards = CodeReward().rewards(zip(answers, labels, strict=True))
    if None in rewards:
        raise Unjudged(f"{rewards.count(None)} of {len(rewards)} answers could not be judged")
    found = rewards[0] if len(rewards) == 1 else rewards
    return {"rewards": found, "scores": found, "extra_logs": {"code_reward": found}}
