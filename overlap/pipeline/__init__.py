"""The loop: prompts → requests → trajectories → scored → groups → batches → steps → weights.

Consumes  prompts; produces a StepResult per step
Waits for a lease, a lane of the engine or of the verifier, a full batch, the learner, the load of the weights
Woken by  the end of any of them: all run in one task group, and the first failure ends it
"""
