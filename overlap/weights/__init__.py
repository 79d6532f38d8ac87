"""ZeRO shards → full named tensors → the engine.

Consumes  the learner's parameters, on every rank; produces the info of a WeightUpdate
Waits for the other ranks (ZeRO-3 gathers together), and for the engine where tensors are sent
Woken by  the driver's publish, transmit and retire
"""

from overlap.weights.copies import Piece, WeightCopy, mapped, piece_digest
from overlap.weights.full import ADAPTER_SCALE, FullTensors, LowRank, WeightSender, full_tensors, whole_shape
from overlap.weights.pieces import Brought, Pieces, WeightEndpoint
from overlap.weights.shm import open_sender

__all__ = [
    "ADAPTER_SCALE",
    "Brought",
    "FullTensors",
    "LowRank",
    "Piece",
    "Pieces",
    "WeightCopy",
    "WeightEndpoint",
    "WeightSender",
    "full_tensors",
    "mapped",
    "open_sender",
    "piece_digest",
    "whole_shape",
]
