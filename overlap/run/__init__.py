"""One run from start to end: the session, its engines and verifier, restarts, saving, and control from outside.

Hands out its names lazily, so that `overlap ctl` and `import overlap` stay light.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlap.run import restarts, training
    from overlap.run.control_socket import ask
    from overlap.run.handle import Run, start
    from overlap.run.open_close import Door, open_doors, start_set_aside
    from overlap.run.parts import rolling, sandbox_verifier, serving_engines
    from overlap.run.session import ALL_SOLVED
    from overlap.run.training import check_resume, open_rollouts, train
else:
    from sandbox.lazy import names

    __getattr__ = names(
        __name__,
        {
            "control_socket": ("ask",),
            "handle": (
                "Run",
                "start",
            ),
            "open_close": (
                "Door",
                "open_doors",
                "start_set_aside",
            ),
            "parts": (
                "rolling",
                "sandbox_verifier",
                "serving_engines",
            ),
            "session": ("ALL_SOLVED",),
            "training": (
                "check_resume",
                "open_rollouts",
                "train",
            ),
        },
    )

__all__ = [
    "ALL_SOLVED",
    "Door",
    "Run",
    "ask",
    "check_resume",
    "open_doors",
    "open_rollouts",
    "restarts",
    "rolling",
    "sandbox_verifier",
    "serving_engines",
    "start",
    "start_set_aside",
    "train",
    "training",
]
