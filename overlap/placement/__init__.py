"""Which process is on which device, what each needs there, and whether it fits: pure functions of the configuration, of
the models' shapes, and of what the machine has.

Decided once, in the driver, before anything starts, and passed to the engines' hosts and the learner's ranks. Imports
no torch and starts no CUDA.
"""
