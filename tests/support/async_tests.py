"""What hands a test that is a coroutine its first argument."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from inspect import Signature, signature
from typing import Any

Test = Callable[..., Coroutine[Any, Any, None]]


def supplied(test: Test, run: Callable[[Test], object]) -> Callable[..., None]:
    """``test`` without its first argument: ``run`` makes that, and awaits the test with it."""

    @wraps(test)
    def supply(**fixtures: Any) -> None:
        run(partial(test, **fixtures))

    supply.__signature__ = Signature([*signature(test).parameters.values()][1:])  # type: ignore[attr-defined]
    return supply
