"""Which process sits on which device, what each needs there, and whether it fits: pure functions of the configuration,
of the models' shapes, and of what the machine has.

Decided once, in the driver, before anything starts; the engines' hosts and the learner's ranks are told. Imports no
torch and starts no CUDA.
"""

from overlap.placement.activations import DecoderShape, activation_bytes, checkpoints, decoder_shape, trained_parameters
from overlap.placement.devices import Devices, NodeDevices, computes_bfloat16, devices_here, free_memory
from overlap.placement.fit import Seating, check_fit, named_devices, seating_here, seating_on
from overlap.placement.memory import (
    CPU_BLOCK_TOKENS,
    MemoryPlan,
    PlannedRun,
    Seats,
    kv_cache_bytes,
    memory_plan,
    token_bytes,
)
from overlap.placement.node_seats import (
    check_nodes,
    driver_node,
    fits_on,
    moved_seat,
    nodes_line,
    place_over,
    ranks_line,
    seating_over,
)
from overlap.placement.rank_placement import reseated
from overlap.placement.seats import Backend, EngineSeat, Placement, RankSeat, check_environment, place, place_here
from overlap.placement.shapes import ModelShape, read_shape, shape_of, text_config
from overlap.placement.table import cache_line, memory_line, memory_table, seats_line

__all__ = [
    "CPU_BLOCK_TOKENS",
    "Backend",
    "DecoderShape",
    "Devices",
    "EngineSeat",
    "MemoryPlan",
    "ModelShape",
    "NodeDevices",
    "Placement",
    "PlannedRun",
    "RankSeat",
    "Seating",
    "Seats",
    "activation_bytes",
    "cache_line",
    "check_environment",
    "check_fit",
    "check_nodes",
    "checkpoints",
    "computes_bfloat16",
    "decoder_shape",
    "devices_here",
    "driver_node",
    "fits_on",
    "free_memory",
    "kv_cache_bytes",
    "memory_line",
    "memory_plan",
    "memory_table",
    "moved_seat",
    "named_devices",
    "nodes_line",
    "place",
    "place_here",
    "place_over",
    "ranks_line",
    "read_shape",
    "reseated",
    "seating_here",
    "seating_on",
    "seating_over",
    "seats_line",
    "shape_of",
    "text_config",
    "token_bytes",
    "trained_parameters",
]
