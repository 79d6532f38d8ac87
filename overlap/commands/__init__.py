"""The work behind the commands of `overlap`, apart from their arguments, which are in overlap/cli.py."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlap.commands.cluster import add_cluster
    from overlap.commands.export import export_command
    from overlap.commands.rollout import (
        Parts,
        Sandbox,
        check_data_command,
        check_engines,
        filter_command,
        rollout_command,
        run_standalone,
    )
else:
    from sandbox.lazy import names

    __getattr__ = names(
        __name__,
        {
            "cluster": ("add_cluster",),
            "export": ("export_command",),
            "rollout": (
                "Parts",
                "Sandbox",
                "check_data_command",
                "check_engines",
                "filter_command",
                "rollout_command",
                "run_standalone",
            ),
        },
    )

__all__ = [
    "Parts",
    "Sandbox",
    "add_cluster",
    "check_data_command",
    "check_engines",
    "export_command",
    "filter_command",
    "rollout_command",
    "run_standalone",
]
