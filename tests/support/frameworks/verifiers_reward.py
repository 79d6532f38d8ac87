"""argv: a file with answers. Rewards and errors of the real verifiers, as JSON on the last line."""

import asyncio
import json
import sys
from pathlib import Path

import verifiers.v1 as vf

from sandbox.integrations.verifiers import JudgedData, JudgedTask

samples = json.loads(Path(sys.argv[1]).read_text())


class Samples(vf.Taskset[JudgedTask, vf.TasksetConfig]):
    def load(self):
        for index, sample in enumerate(samples):
            yield JudgedTask(JudgedData(idx=index, prompt="add", tests=sample["truth"]), self.config.task)


def trace_of(task, answer):
    """As a rollout leaves it behind."""
    agent = vf.AgentInfo.model_construct(name="policy")
    trace = vf.Trace.model_construct(task=vf.TraceTask.model_construct(data=task.data), agent=agent)
    trace.nodes = [vf.MessageNode(message=vf.AssistantMessage(content=answer), parent=None, sampled=True)]
    return trace


async def scored(task, answer):
    trace = trace_of(task, answer)
    try:
        await task.score(trace)
    except vf.SandboxError as error:
        return None, str(error)
    return trace.reward, ""


async def main():
    tasks = list(Samples(vf.TasksetConfig(id="samples")))
    return await asyncio.gather(*(scored(task, s["answer"]) for task, s in zip(tasks, samples, strict=True)))


found = asyncio.run(main())
print(json.dumps({"rewards": [reward for reward, _ in found], "errors": [error for _, error in found]}))
