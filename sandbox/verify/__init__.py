"""Judges the submissions of a contest package, and holds what is found against what its authors expect.

Consumes  a Package; produces what each submission was expected to be and what it was found to be
Waits for the jail, submission by submission
Woken by  the end of a run
"""

from sandbox.verify import cli

__all__ = ["cli"]
