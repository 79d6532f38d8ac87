"""What a method of a callback may return: the class itself, an object of it, or a list of them."""

from __future__ import annotations

from dataclasses import dataclass

from overlap.core import shortened


@dataclass(frozen=True, slots=True)
class Action:
    """Base of what a callback asks of the run."""


@dataclass(frozen=True, slots=True)
class Stop(Action):
    """Learn no further step. The run ends in order: the policy is saved, and evaluated as at every end."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Save(Action):
    """Write a checkpoint before the next step."""


@dataclass(frozen=True, slots=True)
class Evaluate(Action):
    """Evaluate the policy on the held-out problems before the next step."""


def actions_of(returned: object) -> tuple[Action, ...]:
    """The actions that a callback has returned. Raises TypeError for anything else."""
    if returned is None:
        return ()
    if isinstance(returned, list | tuple):
        return tuple(action for part in returned for action in actions_of(part))
    if isinstance(returned, Action):
        return (returned,)
    if isinstance(returned, type) and issubclass(returned, Action) and returned is not Action:
        return (returned(),)
    raise TypeError(f"it returned {shortened(returned)}: return Stop, Save, Evaluate, a list of them, or None")
