"""Runs of programs as clients of other servers know them: deadlines, limits on time, and how a run ended."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from sandbox.errors import SandboxError

PATIENCE_S: Final = 8.0
"""Clients wait ten seconds longer than compiling and running may take together; then they count the answer as lost."""
BACKSTOP_S: Final = 5.0
_KILLED: Final = -int(signal.SIGKILL)
_SIGNALS: Final = {"output": -int(signal.SIGXFSZ), "security": -int(signal.SIGSYS)}


@asynccontextmanager
async def answered_within(seconds: float) -> AsyncIterator[None]:
    """Raises SandboxError, which clients answer by asking again, when it takes longer."""
    try:
        async with asyncio.timeout(seconds) as deadline:
            yield
    except TimeoutError:
        if not deadline.expired():
            raise
        raise SandboxError(f"not done within {seconds:g} s: more is asked for than the workers can do") from None


def is_interpreted(language: str) -> bool:
    """Whether SandboxFusion knows no compilation of it: what cannot be parsed fails as it runs."""
    return language in ("python", "javascript")


def return_code(exit_code: int | None, signal_sent: int | None, cause: str) -> int:
    """What `subprocess` would say of such an end."""
    if exit_code is not None:
        return exit_code
    return -signal_sent if signal_sent else _SIGNALS.get(cause.partition(":")[0], _KILLED)
