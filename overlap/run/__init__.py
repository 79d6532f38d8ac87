"""One run from start to end: the session, its engines and verifier, restarts, saving, and control from outside.

Hands out its names lazily, so that `overlap ctl` and `import overlap` stay light.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlap.run import restarts, training
    from overlap.run.control import RunStatus
    from overlap.run.control_socket import ask
    from overlap.run.handle import Run, start
    from overlap.run.kept_rollouts import NEEDS, rollouts_in
    from overlap.run.open_close import Component, gc_frozen, open_components
    from overlap.run.parts import PartFactory
    from overlap.run.run_events import RunEvents
    from overlap.run.training import run_training, train
else:
    from sandbox.lazy import names

    __getattr__ = names(__name__)

__all__ = [
    "NEEDS",
    "Component",
    "PartFactory",
    "Run",
    "RunEvents",
    "RunStatus",
    "ask",
    "gc_frozen",
    "open_components",
    "restarts",
    "rollouts_in",
    "run_training",
    "start",
    "train",
    "training",
]
