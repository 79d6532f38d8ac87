"""Bytes × bytes → yes or no, and how values cross the wall.

What for: output against expectation, in a named mode. Knows nothing of programs, problems or processes.
"""

from sandbox.compare import hashed, modes, values
from sandbox.compare.modes import CHECKER, check_mode
from sandbox.compare.values import Unencodable, decode_value, encode_lazy, encode_value, loads

__all__ = [
    "CHECKER",
    "Unencodable",
    "check_mode",
    "decode_value",
    "encode_lazy",
    "encode_value",
    "hashed",
    "loads",
    "modes",
    "values",
]
