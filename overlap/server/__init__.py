"""Serves the policy to the code that rolls an episode out: chat requests in, exact tokens kept, one trajectory per
episode.

consumes: requests, messages                 produces: trajectories of many turns
waits for: slots, the engine, the rollout    woken by: the end of a response, or of a rollout

Knows nothing of how a reward is made.
"""

from overlap.server.chat import Budget, Chat
from overlap.server.episodes import EpisodeSandbox, HarnessCrashed, episodes
from overlap.server.gateway import Gateway
from overlap.server.harness import HarnessRollout, HarnessTask
from overlap.server.harness_jail import AgentSpace, agent_space, check_space
from overlap.server.harness_process import StderrTail
from overlap.server.reply import Reply, ToolCall
from overlap.server.template import ChatTemplate

__all__ = [
    "AgentSpace",
    "Budget",
    "Chat",
    "ChatTemplate",
    "EpisodeSandbox",
    "Gateway",
    "HarnessCrashed",
    "HarnessRollout",
    "HarnessTask",
    "Reply",
    "StderrTail",
    "ToolCall",
    "agent_space",
    "check_space",
    "episodes",
]
