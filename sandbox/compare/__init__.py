"""Compare outputs (bytes and a mode, yes or no), and encode values that cross the jail's boundary.

Knows nothing of programs, problems or processes.
"""

from sandbox.compare import hashed, modes, values
from sandbox.compare.modes import CHECKER, LISTED, check_mode
from sandbox.compare.values import Unencodable, decode_value, encode_lazy, encode_value, finite_float, loads

__all__ = [
    "CHECKER",
    "LISTED",
    "Unencodable",
    "check_mode",
    "decode_value",
    "encode_lazy",
    "encode_value",
    "finite_float",
    "hashed",
    "loads",
    "modes",
    "values",
]
