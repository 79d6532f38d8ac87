"""Environments that exist already, as tasks: ``data.task=verifiers:NAME``, ``harbor:DIR``, ``openenv:URL``.

    prompts ◀── rows of the environment          rollout ──▶ its episode, by the policy ──▶ answer, with its reward

What they stand on is optional, and is imported or reached only when such a task is made. A fault of an environment is
no failure of the policy: its episode fails, is counted, and has no reward.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlap.environments.harbor_task import HarborTask
    from overlap.environments.openenv_task import OpenEnvTask
    from overlap.environments.scored import EnvironmentFault
    from overlap.environments.verifiers_task import VerifiersTask
else:  # each needs what the others do not
    from sandbox.lazy import names

    __getattr__ = names(__name__)

__all__ = ["EnvironmentFault", "HarborTask", "OpenEnvTask", "VerifiersTask"]
