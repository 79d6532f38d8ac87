"""What a run is asked to do: fields with their bounds, and how they are read.

What for: one frozen :class:`Config`, checked where it is made. Knows nothing of what is done with it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlap.config.arguments import check_config_given, check_count_given, path_given
    from overlap.config.docs import changed_lines, field_lines
    from overlap.config.earlier import Change, changes
    from overlap.config.fields import ClusterConfig, Config, DataConfig, ModelConfig, RunConfig, VerifyConfig
    from overlap.config.hints import name_hint
    from overlap.config.import_path import import_function, import_named, trying
    from overlap.config.learn import CriticConfig, LearnConfig, Truncated
    from overlap.config.load import (
        config_from_dict,
        last_override,
        load_config,
        section_from,
        without_override,
    )
    from overlap.config.rollout import EpisodeConfig, RolloutConfig, check_sharing
    from overlap.config.rules import above, at_least
    from overlap.config.yaml_file import HISTORY
else:  # imported on first use: a command that reads a run starts in a tenth of the time
    from sandbox.lazy import names

    __getattr__ = names(__name__)

__all__ = [
    "HISTORY",
    "Change",
    "ClusterConfig",
    "Config",
    "CriticConfig",
    "DataConfig",
    "EpisodeConfig",
    "LearnConfig",
    "ModelConfig",
    "RolloutConfig",
    "RunConfig",
    "Truncated",
    "VerifyConfig",
    "above",
    "at_least",
    "changed_lines",
    "changes",
    "check_config_given",
    "check_count_given",
    "check_sharing",
    "config_from_dict",
    "field_lines",
    "import_function",
    "import_named",
    "last_override",
    "load_config",
    "name_hint",
    "path_given",
    "section_from",
    "trying",
    "without_override",
]
