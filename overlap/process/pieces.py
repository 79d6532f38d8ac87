"""Data too large for one message, in pieces of which some are on their way at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from overlap.core.aio import together

PIECE_BYTES = 16 << 20
AHEAD = 3
"""Pieces on their way at a time: one is made, one comes, one is written."""


async def in_pieces(size: int, move: Callable[[int, int], Awaitable[None]]) -> None:
    """Move ``size`` bytes: ``move`` gets where each piece begins, and its length."""
    pieces = ((at, min(PIECE_BYTES, size - at)) for at in range(0, max(1, size), PIECE_BYTES))

    async def work() -> None:
        for piece in pieces:
            await move(*piece)

    await together(*(work() for _ in range(AHEAD)))
