"""The learner: ranks in processes of their own, so that no backward pass holds up the loop.

Consumes  a Batch; produces a StepReport and, on request, a WeightUpdate
Waits for its ranks
Woken by  their replies, or by the death of one
"""
