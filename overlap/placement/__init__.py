"""Who sits where, what each needs there, and whether it fits: pure functions of configuration, models and hardware.

Consumes  a Config, shapes of models and the devices; produces a MemoryPlan, or the settings that would make a run fit
Waits for nothing
"""

from overlap.placement.fit import Seating, check_fit
from overlap.placement.hardware import Hardware, free_memory, named_hardware, seat
from overlap.placement.memory import (
    CPU_BLOCK_TOKENS,
    Asked,
    MemoryPlan,
    Seats,
    kv_cache_bytes,
    memory_plan,
    token_bytes,
)
from overlap.placement.shapes import ModelShape, read_shape, shape_of, text_config
from overlap.placement.table import memory_line, memory_table

__all__ = [
    "CPU_BLOCK_TOKENS",
    "Asked",
    "Hardware",
    "MemoryPlan",
    "ModelShape",
    "Seating",
    "Seats",
    "check_fit",
    "free_memory",
    "kv_cache_bytes",
    "memory_line",
    "memory_plan",
    "memory_table",
    "named_hardware",
    "read_shape",
    "seat",
    "shape_of",
    "text_config",
    "token_bytes",
]
