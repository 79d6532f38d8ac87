"""Which process sits on which device: a pure function of the configuration and of what the machine has.

Decided once, in the driver, before anything starts; the engines' hosts and the learner's ranks are told. Imports no
torch and starts no CUDA.
"""

from overlap.placement.devices import Devices, devices_here
from overlap.placement.seats import Backend, EngineSeat, Placement, RankSeat, check_environment, place, place_here

__all__ = [
    "Backend",
    "Devices",
    "EngineSeat",
    "Placement",
    "RankSeat",
    "check_environment",
    "devices_here",
    "place",
    "place_here",
]
