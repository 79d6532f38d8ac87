"""Try again in another jail where one fails, or the machine starves a run, as often as `errors.Deaths` says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sandbox.core.nouns import Isolation
from sandbox.errors import Deaths, Starved, WorkerDied
from sandbox.jail.jail import Jail

T = TypeVar("T")


class JailKeeper:
    """Holds a jail, started on first use and replaced where it fails. `close` ends it."""

    def __init__(self, isolation: Isolation, **options: Any) -> None:
        """`options`: those of Jail."""
        self._isolation, self._options = isolation, options
        self._jail: Jail | None = None

    def use(self, work: Callable[[Jail], T]) -> T:
        """Return the result of `work`, which is called anew in a fresh jail. Raises TookDown, SandboxError."""
        deaths = Deaths()
        while True:
            try:
                if self._jail is None:
                    self._jail = Jail(self._isolation, **self._options)
                    self._isolation = self._jail.tier  # the tier that `auto` found: the next jail must not be weaker
                return work(self._jail)
            except (Starved, WorkerDied) as error:
                last = deaths.add(error, handed=self._jail is not None)
                self.close()
                if last is not None:
                    raise last from None

    def close(self) -> None:
        """Safe to call twice."""
        jail, self._jail = self._jail, None
        if jail is not None:
            jail.close()


def in_fresh_jails(work: Callable[[Jail], T], isolation: Isolation, **options: Any) -> T:
    """Do one thing in a jail of its own. Raises as `JailKeeper.use`."""
    keeper = JailKeeper(isolation, **options)
    try:
        return keeper.use(work)
    finally:
        keeper.close()
