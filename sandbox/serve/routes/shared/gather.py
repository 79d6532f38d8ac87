"""Several jobs of one request at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def all_of(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results in order. Raises the first error, with the others cancelled and ended."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
