"""Names by which verl, OpenRLHF and TRL call what a field here is: for whoever comes from there."""

from __future__ import annotations

_NAMES = {
    "learn.lr": "actor_learning_rate",
    "learn.ranks": "actor_num_gpus_per_node n_gpus_per_node",
    "learn.offload=cpu": "adam_offload optimizer_offload",
    "learn.advantage": "adv_estimator advantage_estimator",
    "learn.clip_low and learn.clip_high": "clip_ratio eps_clip",
    "learn.clip_high": "clip_ratio_high",
    "learn.clip_low": "clip_ratio_low",
    "learn.dual_clip": "c_clip clip_ratio_c delta",
    "none: the critic's loss is not clipped": "cliprange_value",
    "critic.lr": "critic_learning_rate",
    "critic.policy": "critic_pretrain",
    "critic.warmup_steps": "critic_warmup freezing_actor_steps",
    "learn.checkpointing": "enable_gradient_checkpointing gradient_checkpointing",
    "learn.entropy_coef": "entropy_coeff",
    "none: a reward comes at the end of a response, and is not discounted (1)": "gamma",
    "model.response_tokens": "generate_max_len max_response_length",
    "learn.kl_coef": "init_kl_coef kl_loss_coef",
    "critic.lambda_policy (the critic's targets have lambda 1)": "lam lambd",
    "none: it is twice learn.lora_rank": "lora_alpha",
    "rollout.max_sequences": "max_num_seqs",
    "model.prompt_tokens": "max_prompt_length prompt_max_len",
    "model.policy": "model_name_or_path path pretrain",
    "rollout.samples_per_group": "n n_samples_per_prompt num_generations",
    "learn.offload=sleep": "param_offload",
    "none: each sample is learned from once, in learn.updates_per_step mini-batches": "ppo_epochs",
    "learn.micro_batch_tokens": "ppo_max_token_len_per_gpu",
    "learn.updates_per_step (mini-batches in a step)": "ppo_mini_batch_size",
    "rollout.groups_per_step": "rollout_batch_size train_batch_size",
    "run.save_every": "save_freq",
    "rollout.tensor_parallel": "tensor_model_parallel_size vllm_tensor_parallel_size",
    "run.eval_every": "test_freq",
    "run.steps": "total_epochs total_training_steps",
    "data.train": "train_files",
    "learn.sequence_parallel": "ulysses_sequence_parallel_size",
    "learn.kl_coef above 0": "use_kl_loss",
    "data.heldout": "val_files",
    "rollout.gpu_memory": "vllm_gpu_memory_utilization",
    "rollout.replicas": "vllm_num_engines",
}
FOREIGN = {name: here for here, names in _NAMES.items() for name in names.split()}
"""The last part of the name there → what it is here."""

ADVANTAGES = {
    "grpo": "group",
    "ppo": "gae",
    "reinforce": "global",
    "reinforce++": "global",
    "reinforce_plus_plus": "global",
    "rloo": "leave_one_out",
}
"""Algorithms → ``learn.advantage``."""
