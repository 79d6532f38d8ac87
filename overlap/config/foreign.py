"""Names by which TRL (and transformers), verl, OpenRLHF and AReaL call what a field here is: for whoever comes from
there. ``meaning`` is asked before any spelling is compared: ``epsilon`` is no misspelt ``episode``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_NAMES = {
    # the policy
    "model.policy": "model_name_or_path model.path model_path pretrain actor_model_name_or_path",
    "model.dtype": "torch_dtype dtype rollout.dtype param_dtype",
    "model.dtype=bfloat16": "bf16",
    "none: model.dtype is bfloat16 or float32": "fp16 load_in_4bit load_in_8bit tf32",
    "model.prompt_tokens": "max_prompt_length prompt_max_len",
    "model.response_tokens": "max_completion_length max_response_length generate_max_len max_new_tokens",
    "model.prompt_tokens and model.response_tokens, whose sum it is": (
        "vllm_max_model_length max_model_len max_length max_seq_length max_len context_length"
    ),
    "none: each family of models has one attention implementation": (
        "attn_implementation use_liger_kernel use_remove_padding packing_samples torch_compile flash_attn"
    ),
    # the data and the reward
    "data.train": "dataset_name train_dataset train_files prompt_data dataset train_dataset.path",
    "data.heldout": "eval_dataset val_files valid_dataset",
    "data.task, a class with prompts and reward": (
        "reward_funcs reward_weights reward_model_path reward_model reward_pretrain remote_rm_url "
        "custom_reward_function reward_manager reward_fn input_key label_key prompt_key reward_fn_key agent_func_path"
    ),
    "none: prompts are always shuffled, by run.seed": "shuffle shuffle_dataset",
    "none: longer prompts than model.prompt_tokens are always left out": "filter_overlong_prompts truncation",
    # sampling
    "rollout.groups_per_step (prompts in a step)": (
        "rollout_batch_size train_batch_size generation_batch_size steps_per_generation gen_batch_size"
    ),
    "rollout.samples_per_group": "num_generations n n_samples n_samples_per_prompt group_size",
    "rollout.max_sequences": "max_num_seqs max_concurrent_rollouts vllm_generate_batch_size",
    "rollout.max_staleness": (
        "async_train async_queue_size staleness_threshold max_head_offpolicyness max_async_level async_level"
    ),
    "rollout.in_flight": "partial_rollout",
    "rollout.refill_groups (groups of equal rewards are always dropped)": (
        "filter_groups dynamic_filtering dynamic_sampling dynamic_filtering_reward_range max_num_gen_batches"
    ),
    "rollout.tensor_parallel": "tensor_model_parallel_size vllm_tensor_parallel_size tensor_parallel_size",
    "rollout.replicas": "vllm_num_engines data_parallel_size",
    "rollout.gpu_memory": "vllm_gpu_memory_utilization gpu_memory_utilization",
    "rollout.weight_backend": "vllm_sync_backend weight_sync_backend",
    "none: samples to train on are drawn from the whole distribution, at rollout.temperature": (
        "top_p top_k min_p repetition_penalty generation_kwargs ignore_eos do_sample"
    ),
    "none: vLLM always samples, and who sits on which device follows from the fields of rollout and learn": (
        "use_vllm vllm_mode vllm_model_impl rollout.name rollout.mode colocate_all_models colocate_actor_ref "
        "hybrid_engine actor_num_nodes vllm_server_host vllm_server_port vllm_server_base_url"
    ),
    "none: an engine that shares GPUs with the learner always sleeps while that learns": (
        "vllm_enable_sleep_mode vllm_enable_sleep deepspeed_enable_sleep free_cache_engine"
    ),
    "rollout.engine, a mapping of vLLM's own names": (
        "engine_kwargs engine_kwargs.vllm vllm_kwargs vllm_engine_kwargs enforce_eager max_num_batched_tokens "
        "enable_chunked_prefill enable_prefix_caching kv_cache_dtype quantization block_size speculative_config "
        "enable_expert_parallel expert_parallel_size"
    ),
    "none: the learner sends the weights": "load_format",
    "episode.turns": "max_tool_calling_iterations max_assistant_turns max_user_turns max_turns",
    "episode.tool_parser": "multi_turn.format",
    # the learner
    "learn.lr": "learning_rate actor_learning_rate",
    "learn.ranks": "actor_num_gpus_per_node n_gpus_per_node nproc_per_node",
    "learn.ranks, and cluster.address for several machines": "nnodes num_nodes n_nodes",
    "learn.zero_stage and learn.offload": "deepspeed fsdp fsdp_config fsdp_size strategy",
    "learn.offload=cpu": "adam_offload optimizer_offload",
    "learn.offload=sleep": "param_offload",
    "learn.checkpointing": "gradient_checkpointing enable_gradient_checkpointing",
    "learn.compile": "torch_compile use_torch_compile use_liger use_liger_kernel use_fused_kernels",
    "learn.sequence_parallel": "ulysses_sequence_parallel_size ring_attn_size context_parallel_size",
    "learn.grad_clip": "max_grad_norm max_norm gradient_clipping",
    "learn.weight_decay": "l2",
    "learn.warmup_steps (steps, not a share of them)": "warmup_ratio lr_warmup_ratio lr_warmup_steps_ratio",
    "learn.warmup_steps": "lr_warmup_steps num_warmup_steps",
    "learn.schedule": "lr_scheduler_type lr_scheduler warmup_style",
    "none: AdamW, with betas of 0.9 and 0.999": "adam_beta1 adam_beta2 adam_betas betas adam_epsilon optimizer",
    "learn.micro_batch_tokens (tokens, not samples); a step has rollout.groups_per_step prompts": (
        "per_device_train_batch_size micro_train_batch_size micro_rollout_batch_size ppo_micro_batch_size "
        "ppo_micro_batch_size_per_gpu log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu "
        "micro_batch_size micro_batch_size_per_gpu per_device_eval_batch_size"
    ),
    "learn.micro_batch_tokens": (
        "ppo_max_token_len_per_gpu train_max_tokens_per_gpu log_prob_max_token_len_per_gpu max_tokens_per_mb"
    ),
    "none: it follows from learn.micro_batch_tokens and rollout.groups_per_step": (
        "gradient_accumulation_steps use_dynamic_bsz use_dynamic_batch"
    ),
    "learn.updates_per_step (mini-batches in a step)": "ppo_mini_batch_size ppo_n_minibatches",
    "none: each sample is learned from once, in learn.updates_per_step mini-batches": (
        "ppo_epochs num_iterations max_epochs num_ppo_epochs"
    ),
    "learn.lora_rank": "lora_r",
    "learn.lora_rank above 0": "use_peft use_lora",
    "learn.lora_sync (adapter or merged)": "lora.merge",
    "none: it is twice learn.lora_rank": "lora_alpha",
    "none: adapters are on all linear layers, without dropout": (
        "lora_dropout lora_target lora_target_modules target_modules"
    ),
    # advantage, loss, correction
    "learn.advantage": "adv_estimator advantage_estimator",
    "learn.normalize_advantages": (
        "scale_rewards norm_adv_by_std_in_grpo no_advantage_std_norm whiten_advantages adv_norm"
    ),
    "none: a reward comes at the end of a response, and is not discounted (1)": "gamma discount",
    "learn.loss": "loss_mode policy_loss_type",
    "learn.loss=cispo for cispo; every other one is ppo, a mean over the tokens of a step (dapo)": "loss_type",
    "learn.loss=gspo for whole responses, else leave it out": "importance_sampling_level",
    "none: the loss is a mean over all tokens of a step": "loss_agg_mode",
    "learn.clip_low and learn.clip_high": "epsilon clip_ratio eps_clip cliprange clip_range eps_clip_low_high",
    "learn.clip_high": "epsilon_high clip_ratio_high eps_clip_high eps_clip_higher",
    "learn.clip_low": "epsilon_low clip_ratio_low eps_clip_low",
    "learn.dual_clip": "c_clip clip_ratio_c delta",
    "learn.kl_coef": "beta init_kl_coef kl_loss_coef kl_ctl kl_ctrl kl_beta",
    "learn.kl_coef above 0": "use_kl_loss",
    "learn.kl_in=reward": "use_kl_in_reward",
    "learn.kl_estimator": "kl_penalty kl_loss_type",
    "none: learn.kl_coef stays what it is": "kl_target kl_horizon",
    "learn.reference": "ref_model teacher_model teacher_model_name_or_path ref_model_path",
    "none: the reference policy stays what it is": "sync_ref_model ref_model_sync_steps ref_model_mixup_alpha",
    "learn.entropy_coef": "entropy_coeff entropy_loss_coef",
    "learn.truncated=mask": "mask_truncated_completions overlong_filter mask_no_eos_with_zero",
    "learn.overlong_tokens": "overlong_buffer_len overlong_buffer overlong_buffer.len soft_punish_cache",
    "none: learn.overlong_tokens takes up to 0.5 off": "overlong_penalty_factor penalty_factor",
    "learn.correction": (
        "vllm_importance_sampling_correction vllm_importance_sampling_mode rollout_is use_decoupled_loss "
        "enable_vllm_is_correction"
    ),
    "learn.correction_bound": (
        "vllm_importance_sampling_cap tis_imp_ratio_cap rollout_is_threshold behav_imp_weight_cap "
        "vllm_is_truncated_threshold"
    ),
    # the critic
    "critic.lr": "critic_learning_rate",
    "critic.policy": "critic_pretrain critic.model.path",
    "critic.warmup_steps": "critic_warmup freezing_actor_steps",
    "critic.lambda_policy (the critic's targets have lambda 1)": "lam lambd gae_lambda",
    "none: the critic's loss is not clipped": "cliprange_value value_clip",
    "none: policy and critic have a loss each": "vf_coef",
    # the run
    "run.steps": "max_steps num_train_epochs num_episodes total_epochs total_training_steps total_train_epochs",
    "run.dir": "output_dir default_local_dir save_path ckpt_path experiment_name run_name logging_dir project_name",
    "run.seed": "data_seed",
    "run.save_every": "save_freq save_steps save_interval",
    "run.keep_last": "save_total_limit max_ckpt_num max_actor_ckpt_to_keep max_critic_ckpt_to_keep",
    "run.eval_every": "test_freq eval_steps eval_interval",
    "run.eval_samples": "num_generations_eval eval_n_samples_per_prompt val_kwargs.n",
    "run.eval_temperature": "val_kwargs.temperature",
    "run.eval_samples, which evaluates before and after a run": "val_before_train eval_on_start eval_strategy do_eval",
    "run.keep_rollouts": "rollout_data_dir",
    "run.trackers": "report_to logger use_wandb wandb use_tensorboard",
    "none: a tracker has it from its environment (WANDB_PROJECT, docs/trackers.md), and the run's name from run.dir": (
        "wandb_project wandb_run_name trackio_space_id"
    ),
    "none: metrics go to metrics.jsonl and to run.trackers at each step, samples to trajectories.jsonl (run.samples)": (
        "log_completions logging_steps log_val_generations logging_strategy log_level"
    ),
    "the flag --resume": "resume_from_checkpoint resume_mode load_checkpoint resume",
    "the flag --config": "config config_file config_path",
    "the flag --dry-run": "dry_run dryrun",
    "none: `overlap export RUN --push owner/name` uploads a policy": "push_to_hub hub_model_id",
}
FOREIGN = {name: here for here, names in _NAMES.items() for name in names.split()}
"""What ends a name there ("val_kwargs.n", "n") → what it is here."""

ADVANTAGES = {
    "grpo": "group",
    "dr_grpo": "group learn.normalize_advantages=false",
    "group_norm": "group",
    "ppo": "gae",
    "reinforce": "global",
    "reinforce++": "global",
    "reinforce_plus_plus": "global",
    "rloo": "leave_one_out",
}
"""Algorithms → ``learn.advantage``."""


def meaning(path: Sequence[str], value: Any) -> str:
    """What a name of another trainer is here ("learn.lr"), "" for one that is not known. ``path`` is the name with its
    sections; the longest known end of it decides.
    """
    for start in range(len(path)):
        if here := FOREIGN.get(".".join(path[start:]).lower().replace("-", "_")):
            known = ADVANTAGES.get(str(value).lower()) if here == "learn.advantage" else None
            return f"{here}={known}" if known else here
    return ""
