"""Which process sits on which device, what each needs there, and whether it fits: pure functions of the configuration,
of the models' shapes, and of what the machine has.

Decided once, in the driver, before anything starts; the engines' hosts and the learner's ranks are told. Imports no
torch and starts no CUDA.
"""

from overlap.placement.activations import DecoderShape, activation_bytes, checkpoints, decoder_shape, trained_parameters
from overlap.placement.devices import (
    Devices,
    NodeDevices,
    bfloat16_is_fast,
    devices_here,
    free_memory,
    with_dtype,
)
from overlap.placement.engine_memory import CPU_BLOCK_TOKENS, cpu_block_tokens, cpu_kv_bytes
from overlap.placement.fit import check_fit, named_devices, planned_seats, seats_here, sequences_at_once
from overlap.placement.memory import HOST, MemoryPlan, memory_plan
from overlap.placement.node_seats import (
    check_nodes,
    driver_node,
    fits_on,
    moved_seat,
    nodes_line,
    place_over,
    ranks_line,
    seats_over,
)
from overlap.placement.planned_run import PlannedRun, Seats
from overlap.placement.rank_placement import reseated
from overlap.placement.seats import (
    EngineSeat,
    Placement,
    RankSeat,
    check_environment,
    place,
    place_here,
)
from overlap.placement.shapes import ModelShape, read_shape, shape_of
from overlap.placement.table import (
    cache_line,
    memory_line,
    memory_table,
    options_line,
    seats_line,
    transfer,
)

__all__ = [
    "CPU_BLOCK_TOKENS",
    "HOST",
    "DecoderShape",
    "Devices",
    "EngineSeat",
    "MemoryPlan",
    "ModelShape",
    "NodeDevices",
    "Placement",
    "PlannedRun",
    "RankSeat",
    "Seats",
    "activation_bytes",
    "bfloat16_is_fast",
    "cache_line",
    "check_environment",
    "check_fit",
    "check_nodes",
    "checkpoints",
    "cpu_block_tokens",
    "cpu_kv_bytes",
    "decoder_shape",
    "devices_here",
    "driver_node",
    "fits_on",
    "free_memory",
    "memory_line",
    "memory_plan",
    "memory_table",
    "moved_seat",
    "named_devices",
    "nodes_line",
    "options_line",
    "place",
    "place_here",
    "place_over",
    "planned_seats",
    "ranks_line",
    "read_shape",
    "reseated",
    "seats_here",
    "seats_line",
    "seats_over",
    "sequences_at_once",
    "shape_of",
    "trained_parameters",
    "transfer",
    "with_dtype",
]
