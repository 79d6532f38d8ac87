"""Environments that exist already, as tasks: ``data.task=verifiers:NAME``, ``harbor:DIR``, ``openenv:URL``.

    prompts ◀── rows of the environment          rollout ──▶ its episode, by the policy ──▶ answer, with its reward

What they stand on is optional, and is imported or reached only when such a task is made. A fault of an environment is
no failure of the policy: its episode fails, is counted, and has no reward.
"""
