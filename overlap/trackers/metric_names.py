"""Names of metrics as other trainers write them, for curves beside theirs (``run.metric_names``).

A metric without a counterpart keeps its own name. A counterpart measures the same thing, by the other trainer's
definition of it: a mean over tokens here may be one over micro-batches there.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

Value = TypeVar("Value")
NAMES: Mapping[str, Mapping[str, str]] = {
    "ours": MappingProxyType({}),
    "verl": {  # verl 0.9.1: trainer/ppo/metric_utils.py, ray_trainer.py, workers/utils/losses.py
        "reward/mean": "critic/score/mean",
        "rollout/length_mean": "response_length/mean",
        "rollout/length_max": "response_length/max",
        "rollout/truncated_share": "response_length/clip_ratio",
        "episode/turns_mean": "num_turns/mean",
        "episode/turns_max": "num_turns/max",
        "learn/loss": "actor/pg_loss",
        "learn/entropy": "actor/entropy",
        "learn/kl": "actor/kl_loss",
        "learn/clip_fraction": "actor/pg_clipfrac",
        "learn/update_kl": "actor/ppo_kl",
        "learn/grad_norm": "actor/grad_norm",
        "learn/lr": "actor/lr",
        "critic/loss": "critic/vf_loss",
        "critic/value_mean": "critic/vpred_mean",
        "critic/return_mean": "critic/returns/mean",
        "critic/explained_variance": "critic/vf_explained_var",
        "critic/step_s": "timing_s/update_critic",
        "time/step_s": "timing_s/step",
        "time/generate_s": "timing_s/gen",
        "time/reward_s": "timing_s/reward",
        "time/learn_s": "timing_s/update_actor",
        "time/sync_s": "timing_s/update_weights",
        "eval/pass_at_1": "val-core/heldout/acc/mean@1",
        "eval/reward_mean": "val-core/heldout/reward/mean@1",
    },
    "trl": {  # TRL 1.16.0: trainer/grpo_trainer.py
        "reward/mean": "reward",
        "reward/std": "reward_std",
        "reward/zero_std_share": "frac_reward_zero_std",
        "rollout/length_mean": "completions/mean_length",
        "rollout/length_max": "completions/max_length",
        "rollout/truncated_share": "completions/clipped_ratio",
        "learn/loss": "loss",
        "learn/entropy": "entropy",
        "learn/kl": "kl",
        "learn/clip_fraction": "clip_ratio/region_mean",
        "learn/grad_norm": "grad_norm",
        "learn/lr": "learning_rate",
        "learn/ratio_mean": "sampling/importance_sampling_ratio/mean",
        "learn/ratio_max": "sampling/importance_sampling_ratio/max",
        "learn/ratio_mean_abs_logdiff": "sampling/sampling_logp_difference/mean",
        "learn/ratio_max_logdiff": "sampling/sampling_logp_difference/max",
        "time/step_s": "step_time",
        "eval/reward_mean": "eval_reward",
        "eval/tokens_mean": "eval_completions/mean_length",
        "eval/truncated_share": "eval_completions/clipped_ratio",
    },
}
"""Scheme -> our name -> theirs."""


def renamed(row: Mapping[str, Value], scheme: str) -> dict[str, Value]:
    """The row by the names of ``scheme``; "step" stays."""
    names = NAMES[scheme]
    return {names.get(name, name): value for name, value in row.items()}
