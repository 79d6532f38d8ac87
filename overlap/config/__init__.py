"""What a run is asked to do: fields with their bounds, and how they are read.

What for: one frozen :class:`Config`, checked where it is made. Knows nothing of what is done with it.
"""

from overlap.config.changes import Change, changes
from overlap.config.cluster import ClusterConfig
from overlap.config.critic import CriticConfig
from overlap.config.docs import field_lines
from overlap.config.fields import (
    Config,
    DataConfig,
    ModelConfig,
    RunConfig,
    VerifyConfig,
)
from overlap.config.learn import LearnConfig
from overlap.config.load import HISTORY, config_from_dict, last_override, load_config, without_override
from overlap.config.rollout import RolloutConfig, check_sharing

__all__ = [
    "HISTORY",
    "Change",
    "ClusterConfig",
    "Config",
    "CriticConfig",
    "DataConfig",
    "LearnConfig",
    "ModelConfig",
    "RolloutConfig",
    "RunConfig",
    "VerifyConfig",
    "changes",
    "check_sharing",
    "config_from_dict",
    "field_lines",
    "last_override",
    "load_config",
    "without_override",
]
