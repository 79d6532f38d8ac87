"""Everything before a run starts: inputs loaded and checked, seats assigned, the plan written.

Starts no engine, no learner and no verifier. Raises ConfigError where the run could not work.
"""

from overlap.prepare.disk import disk_plan
from overlap.prepare.plan import (
    devices_plan,
    devices_plan_lines,
    episode_lines,
    left_out_lines,
    memory_inputs,
    plan_lines,
    seats_lines,
)
from overlap.prepare.run_inputs import RunInputs, check_place, checked_file, load_tokenizer, prepare
from overlap.prepare.seating import RunPlacement, check_cluster, cluster_of, cluster_pool, seat
from overlap.prepare.task_prompts import task_prompts

__all__ = [
    "RunInputs",
    "RunPlacement",
    "check_cluster",
    "check_place",
    "checked_file",
    "cluster_of",
    "cluster_pool",
    "devices_plan",
    "devices_plan_lines",
    "disk_plan",
    "episode_lines",
    "left_out_lines",
    "load_tokenizer",
    "memory_inputs",
    "plan_lines",
    "prepare",
    "seat",
    "seats_lines",
    "task_prompts",
]
