"""The commands of ``overlap``: their arguments (``parsers``), and the work behind each, which Python may call too."""

from typing import TYPE_CHECKING

from overlap.commands.flags import OneLineParser, unknown_words
from overlap.commands.parsers import add_commands, positive

if TYPE_CHECKING:
    from overlap.commands.answering import ScoredAnswers, evaluate, rollout
    from overlap.commands.check_data import SandboxComponent
    from overlap.commands.exporting import ExportedPolicy, export
    from overlap.commands.standalone import ServingParts, check_engines, run_standalone
    from overlap.commands.train import ANY_CORES, dry_run, plan_devices
else:
    from sandbox.lazy import names

    __getattr__ = names(__name__)

__all__ = [
    "ANY_CORES",
    "ExportedPolicy",
    "OneLineParser",
    "SandboxComponent",
    "ScoredAnswers",
    "ServingParts",
    "add_commands",
    "check_engines",
    "dry_run",
    "evaluate",
    "export",
    "plan_devices",
    "positive",
    "rollout",
    "run_standalone",
    "unknown_words",
]
