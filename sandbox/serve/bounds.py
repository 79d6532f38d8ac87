"""The bounds on what clients may take of a server: the one place of these numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandbox.core.nouns import MIB, Limits

QUEUE: Final = 1024
BODY_BYTES: Final = 64 * MIB
HELD_BYTES: Final = 1024 * MIB
JOBS_MAX: Final = 10_000
"""Jobs of one request, in any format."""
PYTHON_BYTES: Final = 256 << 10
"""Bytes of the text of one problem that is parsed as Python: its asserts. Parsing it holds every other client up."""
TEXT_VALUES: Final = 200_000
"""JSON values of one text inside a body."""
LINES: Final = 1_000_000
FENCES: Final = 100_000
"""Fences in the answers of a request."""
RUN_S_MAX: Final = 600.0
"""The longest time that a client may ask for one run, or for one call of a session."""
MEMORY_BYTES: Final = 1024 * MIB
"""Memory of a session, and of a run of SandboxFusion's that leaves its memory open."""
SESSION_LIMITS: Final = Limits(cpu_s=RUN_S_MAX, wall_s=RUN_S_MAX, memory_bytes=MEMORY_BYTES)
"""Limits of one call in a session; memory is that of the session."""
RETRY_S: Final = 1
"""Seconds after which a client that was refused may ask again."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on requests and clients; those in seconds are waits for a client."""

    queue: int = QUEUE
    """Requests in hand, including running ones."""
    body_bytes: int = BODY_BYTES
    """Bytes of one request."""
    held_bytes: int = HELD_BYTES
    """Bytes of the bodies of all requests in hand."""
    body_s: float = 30.0
    """Seconds for the whole body of a request."""
    send_s: float = 30.0
    """Seconds for a client that reads no answer."""
    sessions: int = 64
    """Python sessions that are open at once."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not (value := getattr(self, name)) > 0:
                raise ValueError(f"{name}={value}: must be a positive number")
