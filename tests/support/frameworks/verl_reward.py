"""argv: a file with answers, the name of the function. Rewards of verl's reward manager, as JSON on the last line."""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
from verl.trainer.ppo.reward import get_custom_reward_fn

given, name = sys.argv[1:]
samples = json.loads(Path(given).read_text())
custom = {"path": "pkg://sandbox.rewards.verl", "name": name, "reward_kwargs": {"unjudged": -7.0}}
compute_score = get_custom_reward_fn(OmegaConf.create({"reward": {"custom_reward_function": custom}}))


class Letters:
    """A tokenizer whose tokens are characters."""

    def decode(self, ids, skip_special_tokens):
        return "".join(map(chr, ids.tolist()))


def data_of(sample):
    """A batch of one, as verl's rollout makes it."""
    response = torch.tensor([[ord(letter) for letter in sample["answer"]]])
    tensors = {"prompts": torch.ones(1, 1, dtype=torch.long), "responses": response}
    tensors["attention_mask"] = torch.ones(1, 1 + response.shape[1], dtype=torch.long)
    columns = {"data_source": "taco", "reward_model": {"ground_truth": sample["truth"]}, "extra_info": {"index": 1}}
    return DataProto.from_dict(tensors, {key: np.array([value], dtype=object) for key, value in columns.items()})


async def main():
    manager = NaiveRewardManager(OmegaConf.create({}), Letters(), compute_score)
    manager.loop = asyncio.get_running_loop()
    return await asyncio.gather(*(manager.run_single(data_of(sample)) for sample in samples))


found = asyncio.run(main())
print(
    json.dumps(
        {
            "rewards": [one["reward_score"] for one in found],
            "judged": [one["reward_extra_info"]["judged"] for one in found],
        }
    )
)
