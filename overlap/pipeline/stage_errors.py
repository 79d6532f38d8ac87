"""Two things at once, and errors that say where they were."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from overlap.errors import StageError, first_error

A = TypeVar("A")
B = TypeVar("B")


async def both(first: Coroutine[Any, Any, A], second: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """Await two things at once; when one fails the other is cancelled, not abandoned."""

    try:
        async with asyncio.TaskGroup() as tasks:
            a, b = tasks.create_task(first), tasks.create_task(second)
    except BaseExceptionGroup as errors:
        raise (error := first_error(errors)) from error.__cause__
    return a.result(), b.result()


@contextmanager
def naming_stage(stage: str, sample: str) -> Iterator[None]:
    """An error inside becomes a StageError that says where; one that is one already stays."""
    try:
        yield
    except (StageError, asyncio.CancelledError):
        raise
    except Exception as error:
        raise StageError(stage, sample, error) from error
