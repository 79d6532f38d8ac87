"""argv: a file with answers. Rewards that OpenRLHF's SingleTurnAgentExecutor gets from our file, as JSON on the last
line. The engine says the answers; tokens are characters.
"""

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from openrlhf.utils.agent import SingleTurnAgentExecutor

from sandbox.integrations import openrlhf as ours

samples = json.loads(Path(sys.argv[1]).read_text())
PROMPT = "<|im_start|>user\n```python\nprint(7)\n```<|im_end|>\n"


class Letters:
    def __call__(self, text, **_):
        return {"input_ids": torch.tensor([[ord(letter) for letter in text]])}

    def decode(self, ids, skip_special_tokens):
        return "".join(map(chr, ids))


class Engine:
    def __init__(self, answer):
        self.answer = answer

    async def generate(self, prompt_token_ids, params, **_):
        tokens = [ord(letter) for letter in self.answer]
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens, finish_reason="stop", logprobs=None)])


async def rewarded(executor, sample):
    params = SimpleNamespace(max_tokens=5000, logprobs=None)
    output = await executor.execute(PROMPT, sample["truth"], params, 10_000, Letters(), Engine(sample["answer"]))
    return output["reward"], output["scores"]


async def main():
    executor = SingleTurnAgentExecutor(ours.__file__)
    return await asyncio.gather(*(rewarded(executor, sample) for sample in samples))


found = asyncio.run(main())
tensors = [torch.tensor([reward]).tolist() for reward, _ in found if reward is not None]
assert all(len(one) == 1 for one in tensors)
print(json.dumps({"rewards": [reward for reward, _ in found], "scores": [score for _, score in found]}))
