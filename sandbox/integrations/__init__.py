"""Rewards for code, from our pool, for other trainers and evaluations: one module each, over one core.

    trl          reward_funcs=code_reward                    verifiers   class MyTask(JudgedTask)
    verl         custom_reward_function.path, compute_score  inspect     sandbox="overlap"
    openrlhf     --reward.remote_url .../openrlhf.py          areal       reward_fn="sandbox.integrations.areal.reward"
    slime        --custom-rm-path sandbox.integrations.slime.reward

They judge in a pool of the process that calls them, which is opened by the first call and closed at its exit; or on
servers (`sandbox serve`), where the environment has SANDBOX_URL. A framework is imported by its own module only.
"""
