"""How good a policy is: pass@k with an interval, over the course of a run; which problems it can learn from,
and whether they judge rightly.

Consumes  prompts, by generator and verifier; produces a PassRate, ``policy-best/``, or a filtered problem file
Waits for the generator and the verifier
Woken by  their results
"""

from overlap.evaluation.answer_file import AnswerFile, SamplingOptions, complete_answers
from overlap.evaluation.data_check import (
    FAILED,
    DataReport,
    Finding,
    check_in_parts,
    check_problems,
    digest_of,
    in_file,
    known_references,
    open_pool,
    recall,
    remember,
)
from overlap.evaluation.evaluate import (
    Asked,
    PassRate,
    ProblemTally,
    measure_pass_rate,
    paired_change,
    score_answers,
    tallied,
)
from overlap.evaluation.filter import SplitBounds, filter_problems
from overlap.evaluation.history import EvaluationHistory, Evaluator

__all__ = [
    "FAILED",
    "AnswerFile",
    "Asked",
    "DataReport",
    "EvaluationHistory",
    "Evaluator",
    "Finding",
    "PassRate",
    "ProblemTally",
    "SamplingOptions",
    "SplitBounds",
    "check_in_parts",
    "check_problems",
    "complete_answers",
    "digest_of",
    "filter_problems",
    "in_file",
    "known_references",
    "measure_pass_rate",
    "open_pool",
    "paired_change",
    "recall",
    "remember",
    "score_answers",
    "tallied",
]
