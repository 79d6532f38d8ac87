"""Generation: engines in processes of their own, which sample responses and load the learner's weights.

Consumes  requests and weight updates; produces each trajectory the moment it ends
Waits for the gate, which opens when committed weights are loaded
Woken by  ``load``, the end of a response, the death of an engine
"""
