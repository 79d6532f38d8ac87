"""ZeRO shards → full named tensors → the engine.

Consumes  the learner's parameters, on every rank; produces the info of a WeightUpdate
Waits for the other ranks (ZeRO-3 gathers together), and for the engine where tensors are sent
Woken by  the driver's publish, transmit and retire
"""
