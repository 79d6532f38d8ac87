"""Everything before a run starts: inputs loaded and checked, seats assigned, the plan written.

Starts no engine, no learner and no verifier. Raises ConfigError where the run could not work.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlap.prepare.plan import (
        asked_for,
        devices_plan,
        devices_plan_lines,
        episode_lines,
        left_out_lines,
        plan_lines,
        seats_lines,
    )
    from overlap.prepare.run_inputs import RunInputs, check_device, check_place, checked_file, load_tokenizer, prepare
    from overlap.prepare.seating import RunPlacement, check_cluster, cluster_of, seat
else:
    from sandbox.lazy import names

    __getattr__ = names(
        __name__,
        {
            "plan": (
                "asked_for",
                "devices_plan",
                "devices_plan_lines",
                "episode_lines",
                "left_out_lines",
                "plan_lines",
                "seats_lines",
            ),
            "run_inputs": (
                "RunInputs",
                "check_device",
                "check_place",
                "checked_file",
                "load_tokenizer",
                "prepare",
            ),
            "seating": (
                "RunPlacement",
                "check_cluster",
                "cluster_of",
                "seat",
            ),
        },
    )

__all__ = [
    "RunInputs",
    "RunPlacement",
    "asked_for",
    "check_cluster",
    "check_device",
    "check_place",
    "checked_file",
    "cluster_of",
    "devices_plan",
    "devices_plan_lines",
    "episode_lines",
    "left_out_lines",
    "load_tokenizer",
    "plan_lines",
    "prepare",
    "seat",
    "seats_lines",
]
