"""ZeRO shards → full named tensors → the engine.

Consumes  the learner's parameters, on every rank; produces the info of a WeightUpdate
Waits for the other ranks (ZeRO-3 gathers together), and for the engine where tensors are sent
Woken by  the driver's publish, transmit and retire
"""

from overlap.weights.copies import Piece, WeightCopy, mapped
from overlap.weights.full import FullTensors, LowRank, WeightSender, full_tensors, whole_shape
from overlap.weights.shm import open_sender

__all__ = [
    "FullTensors",
    "LowRank",
    "Piece",
    "WeightCopy",
    "WeightSender",
    "full_tensors",
    "mapped",
    "open_sender",
    "whole_shape",
]
