"""From a trajectory to its reward.

Consumes  trajectories; produces one Scored for each
Waits for a verdict of the sandbox pool, or for a reward function in a worker process
Woken by  either, or by its deadline
"""
