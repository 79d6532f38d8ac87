"""argv: a policy's folder, a file with answers. Rewards of the real GRPOTrainer for the answers, and of one step of it,
as JSON on the last line.
"""

import json
import sys
import tempfile
import warnings
from pathlib import Path

warnings.simplefilter("ignore")

from datasets import Dataset  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

from sandbox.rewards.code_reward import CodeReward  # noqa: E402
from sandbox.rewards.trl import TrlCodeReward, code_reward  # noqa: E402

policy, given = sys.argv[1:]
samples = json.loads(Path(given).read_text())
rows = [{"prompt": [{"role": "user", "content": "add"}], "tests": sample["truth"]} for sample in samples]
with tempfile.TemporaryDirectory() as folder:
    config = GRPOConfig(
        output_dir=folder, per_device_train_batch_size=2, num_generations=2, max_completion_length=8, max_steps=1,
        report_to=[], use_cpu=True, logging_steps=1, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = GRPOTrainer(
        policy, reward_funcs=[code_reward, TrlCodeReward(CodeReward(column="tests", share=True))], args=config,
        train_dataset=Dataset.from_list(rows),
    )  # fmt: skip
    said = [[{"role": "assistant", "content": sample["answer"]}] for sample in samples]
    found = trainer._calculate_rewards(rows, [row["prompt"] for row in rows], said, [[1]] * len(said))
    trainer.train()
logged = next(entry for entry in trainer.state.log_history if "rewards/code_reward/mean" in entry)
rewards = [[None if value != value else value for value in row] for row in found.tolist()]
print(json.dumps({"rewards": rewards, "step": logged["rewards/code_reward/mean"]}))
