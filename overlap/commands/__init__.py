"""The commands of ``overlap``: their arguments (``parsers``), and the work behind each."""

from typing import TYPE_CHECKING

from overlap.commands.flags import OneLineParser, unknown_words
from overlap.commands.parsers import add_commands

if TYPE_CHECKING:
    from overlap.commands.check_data import SandboxComponent
    from overlap.commands.export import export_command
    from overlap.commands.standalone import ServingParts, check_engines, run_standalone
    from overlap.commands.train import ANY_CORES, dry_run, plan_devices
else:
    from sandbox.lazy import names

    __getattr__ = names(
        __name__,
        {
            "check_data": ("SandboxComponent",),
            "export": ("export_command",),
            "standalone": ("ServingParts", "check_engines", "run_standalone"),
            "train": ("ANY_CORES", "dry_run", "plan_devices"),
        },
    )

__all__ = [
    "ANY_CORES",
    "OneLineParser",
    "SandboxComponent",
    "ServingParts",
    "add_commands",
    "check_engines",
    "dry_run",
    "export_command",
    "plan_devices",
    "run_standalone",
    "unknown_words",
]
