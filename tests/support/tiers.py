"""Jails of the tiers that isolate, one per module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sandbox.build.builder import Builder
from sandbox.errors import IsolationUnavailable
from sandbox.jail.jail import Jail


def jail_of(*tiers: Any) -> Any:
    """Return a fixture of a module's jail, for each of these tiers in turn."""

    @pytest.fixture(scope="module", params=tiers)
    def tiered_jail(request: pytest.FixtureRequest, builder: Builder) -> Iterator[Jail]:
        try:
            jail = Jail(request.param, shared=builder.shared)
        except IsolationUnavailable as error:
            pytest.skip(str(error))
        with jail:
            yield jail

    return tiered_jail
