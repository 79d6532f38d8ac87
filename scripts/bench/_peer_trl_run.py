"""TRL's GRPO on the default run's policy and problems, as a program in TRL's environment: ``peers`` starts it.

Writes a row per step to a file: seconds since the step before ended, and sampled tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from overlap import Config, load_config
from overlap.core import Prompt
from overlap.run.run_inputs import prepare
from sandbox import Pool

MICRO_BATCH = 16


class StepClock(TrainerCallback):
    """Writes when each optimizer step ended; one step is one batch of samples here."""

    def __init__(self, out: Path) -> None:
        self._out, self._ended_s = out, time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
        if "completions/mean_length" in (logs or {}):
            now_s = time.monotonic()
            row = {"step_s": now_s - self._ended_s, "length_mean": logs["completions/mean_length"]}
            row |= {"reward": logs["reward"]}
            with self._out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            self._ended_s = now_s


def verifier_reward(
    task: Any, prompts: Sequence[Prompt], pool: Pool, runner: asyncio.Runner
) -> Callable[..., list[float | None]]:
    """Our sandbox as a reward function of TRL; ``pool`` is open in the loop of ``runner``."""

    async def judged(at: int, completion: str) -> float | None:
        prompt = prompts[at]
        answer = prompt.prefill + completion
        asked = task.program(prompt, answer)
        judgement = None if asked is None else await pool.judge(*asked)
        reward: float | None = task.reward(prompt, answer, judgement)
        return reward

    async def all_judged(rows: list[int], completions: list[str]) -> list[float | None]:
        return list(await asyncio.gather(*map(judged, rows, completions)))

    def reward(completions: list[str], row: list[int], **rest: Any) -> list[float | None]:
        return runner.run(all_judged(row, completions))

    return reward


def settings(cfg: Config, options: argparse.Namespace) -> GRPOConfig:
    """TRL's settings of a run as ``cfg`` describes it: as many samples a step, all of them on-policy."""
    rollout = cfg.rollout
    return GRPOConfig(
        output_dir=str(options.out.with_suffix(".trl")),
        use_cpu=True,
        bf16=cfg.dtype == "bfloat16",
        max_steps=options.steps,
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=cfg.samples_per_step // MICRO_BATCH,
        gradient_checkpointing=False,
        num_generations=rollout.samples_per_group,
        max_completion_length=cfg.model.response_tokens,
        temperature=rollout.temperature,
        learning_rate=cfg.learn.lr,
        lr_scheduler_type="constant",
        beta=0.0,
        seed=cfg.run.seed,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_max_model_length=cfg.context_tokens,
        generation_kwargs={"stop": list(rollout.stop), "include_stop_str_in_output": True},
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("steps", type=int)
    parser.add_argument("out", type=Path)
    parser.add_argument("settings", nargs="*")
    options = parser.parse_args()
    cfg = load_config(options.config, options.settings)
    inputs = prepare(cfg, None, options.out.parent)
    task, tokenizer, prompts = inputs.task, inputs.tokenizer, inputs.train
    texts = [tokenizer.decode(list(prompt.token_ids)) for prompt in prompts]
    model = AutoModelForCausalLM.from_pretrained(inputs.policy, dtype=getattr(torch, cfg.dtype))
    with ExitStack() as stack:
        runner, pool = stack.enter_context(asyncio.Runner()), Pool(cfg.verify.workers)
        runner.run(pool.__aenter__())
        stack.callback(lambda: runner.run(pool.__aexit__(None, None, None)))
        reward: Any = verifier_reward(task, prompts, pool, runner)
        trainer = GRPOTrainer(
            model,
            reward,
            settings(cfg, options),
            train_dataset=Dataset.from_dict({"prompt": texts, "row": list(range(len(texts)))}),
            processing_class=tokenizer,
            callbacks=[StepClock(options.out)],
        )
        trainer.train()


if __name__ == "__main__":
    main()
