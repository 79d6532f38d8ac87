"""Program × problem → judgement, outside every jail.

Consumes  a program and its problem; produces a Judgement
Waits for the jail, case by case
Woken by  the end of a run, whoever enforced it
"""

from sandbox.judging import control
from sandbox.judging.interactive import INTERACTOR_END_S
from sandbox.judging.judge import Judge, run_once
from sandbox.judging.prepared import CompileError, PreparedProgram
from sandbox.judging.single_run import DOES_NOT_COMPILE, run_program
from sandbox.judging.tries import JailKeeper, in_fresh_jails
from sandbox.judging.verdicts import decide_limits

__all__ = [
    "DOES_NOT_COMPILE",
    "INTERACTOR_END_S",
    "CompileError",
    "JailKeeper",
    "Judge",
    "PreparedProgram",
    "control",
    "decide_limits",
    "in_fresh_jails",
    "run_once",
    "run_program",
]
