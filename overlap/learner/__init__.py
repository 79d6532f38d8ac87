"""The learner: ranks in processes of their own, so that no backward pass holds up the loop.

Consumes  a Batch; produces a StepReport and, on request, a WeightUpdate
Waits for its ranks
Woken by  their replies, or by the death of one
"""

from overlap.learner.export import export_policy
from overlap.learner.learner import ProcessLearner, check_functions
from overlap.learner.saved_state import read_state

__all__ = ["ProcessLearner", "check_functions", "export_policy", "read_state"]
