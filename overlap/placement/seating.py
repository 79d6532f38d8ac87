"""From a placement to what the memory plan asks of it, on the devices at hand or on others that are named."""

from __future__ import annotations

import re

from overlap.config import Config
from overlap.errors import ConfigError
from overlap.placement.devices import Devices, devices_here
from overlap.placement.fit import Seating
from overlap.placement.memory import Seats
from overlap.placement.seats import Placement, place

GIB = 2**30
_NAMED = re.compile(r"([1-9]\d{0,3})x(\d+(?:\.\d+)?)")


def named_devices(text: str) -> Devices:
    """ "8x80": eight GPUs of 80 GiB each. Raises ConfigError."""
    found = _NAMED.fullmatch(text.strip())
    if found is None or not float(found[2]):
        raise ConfigError("--devices", text, "say how many GPUs of how many GiB each, for instance 8x80")
    return Devices.gpus(int(found[1]), int(float(found[2]) * GIB))


def free_memory() -> int:
    """Bytes of the machine's memory that a new process can have."""
    import psutil

    return int(psutil.virtual_memory().available)


def seating_on(devices: Devices, *, host: int = 0, engine: bool = True) -> Seating:
    """Who sits where on ``devices``, in a machine with ``host`` bytes that are free (0: not known)."""

    def seats(cfg: Config) -> Seats:
        return _seats(place(cfg, devices, engine=engine), devices, host)

    return seats


def seating_here(cfg: Config, *, engine: bool = True) -> Seating:
    """On this machine, with the memory that is free now. Raises ConfigError."""
    return seating_on(devices_here(cfg.run.device), host=free_memory(), engine=engine)


def _seats(placement: Placement, devices: Devices, host: int) -> Seats:
    return Seats(
        devices=(devices.bytes,) * len(devices.names),
        engines=tuple(seat.devices for seat in placement.engines),
        ranks=tuple(seat.devices[0] if seat.devices else 0 for seat in placement.ranks),
        turns=placement.sleeps,
        backend=placement.backend,
        host=host,
    )
