"""From a trajectory to its reward.

Consumes  trajectories; produces one Scored for each
Waits for a verdict of the sandbox pool, or for a reward function in a worker process
Woken by  either, or by its deadline
"""

from overlap.verify.guarded_pool import GuardedPool, JudgePool
from overlap.verify.user_fault import RewardFault
from overlap.verify.verifier import PROBE, PROBE_PROGRAM, SandboxVerifier

__all__ = ["PROBE", "PROBE_PROGRAM", "GuardedPool", "JudgePool", "RewardFault", "SandboxVerifier"]
