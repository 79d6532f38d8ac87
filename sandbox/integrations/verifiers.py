"""verifiers (0.3, the v1 API): tasks whose reward is that the program in the last reply passes its tests.

    class MyTaskset(vf.Taskset[JudgedTask, vf.TasksetConfig]):
        def load(self):
            for index, row in enumerate(rows):
                yield JudgedTask(JudgedData(idx=index, prompt=row["prompt"], tests=row["tests"]), self.config.task)

What could not be judged raises `vf.SandboxError`: the trace has an error, and no reward.
"""

from __future__ import annotations

from typing import Any, ClassVar

import verifiers.v1 as vf

from sandbox.integrations.code_reward import CodeReward, Unjudged


class JudgedData(vf.TaskData):
    """Data of a task that is judged by tests."""

    tests: Any = None
    """What `sandbox.rewards.ground_truth` reads: a problem, {inputs, outputs}, a list of tests, asserts; or as JSON."""


class JudgedTask(vf.Task[JudgedData]):
    """A task whose reward `tests_passed` is 1 where the program passes all tests, else 0. Subclasses may set `how`."""

    how: ClassVar[CodeReward] = CodeReward()

    @vf.reward
    async def tests_passed(self, trace: vf.Trace) -> float:
        """Reward of the last reply."""
        return await judged_reply(trace.last_reply, self.data.tests, self.how)


async def judged_reply(reply: str, tests: Any, how: CodeReward | None = None) -> float:
    """The reward of a reply, for reward methods of your own. Raises vf.SandboxError where it could not be judged."""
    try:
        return await (how or CodeReward()).reward_later(reply, tests)
    except Unjudged as error:
        raise vf.SandboxError(str(error)) from error
