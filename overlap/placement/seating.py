"""From a placement to what the memory plan asks of it, on the devices at hand or on others that are named."""

from __future__ import annotations

import re

from overlap.config import Config
from overlap.errors import ConfigError
from overlap.placement.devices import Devices, devices_here
from overlap.placement.fit import Seating
from overlap.placement.host import free_memory
from overlap.placement.memory import Seats
from overlap.placement.seats import Placement, place

GIB = 2**30
_NAMED = re.compile(r"([1-9]\d{0,3})x(\d+(?:\.\d+)?)")


def named_devices(text: str) -> Devices:
    """ "8x80": eight GPUs of 80 GiB each. Raises ConfigError."""
    found = _NAMED.fullmatch(text.strip())
    if found is None or not 1 <= float(found[2]) * GIB < 2**63:
        raise ConfigError("--devices", text, "say how many GPUs of how many GiB each, for instance 8x80")
    return Devices.gpus(int(found[1]), int(float(found[2]) * GIB))


def seating_on(devices: Devices, *, host: int = 0, engine: bool = True, learner: bool = True) -> Seating:
    """Who sits where on ``devices``, in a machine with ``host`` bytes that are free (0: not known)."""

    def seats(cfg: Config) -> Seats:
        return seats_on(place(cfg, devices, engine=engine, learner=learner), devices, host)

    return seats


def seating_here(cfg: Config, *, engine: bool = True, learner: bool = True) -> Seating:
    """On this machine, with the memory that is free now. Raises ConfigError."""
    return seating_on(devices_here(cfg.run.device), host=free_memory(), engine=engine, learner=learner)


def seats_on(placement: Placement, devices: Devices, host: int) -> Seats:
    """What the memory plan asks of a placement that has all its seats on one machine."""
    return Seats(
        devices=(devices.bytes,) * len(devices.names),
        engines=tuple(seat.devices for seat in placement.engines),
        ranks=tuple(seat.devices[0] if seat.devices else 0 for seat in placement.ranks),
        turns=placement.sleeps,
        backend=placement.backend,
        host=host,
        first=placement.ranks[0].rank if placement.ranks else 0,
    )
