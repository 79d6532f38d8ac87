"""Judge the submissions of a contest package and compare the results with what its authors expect.

Consumes  a Package; produces expected and found results of each submission
Waits for the jail, submission by submission
Woken by  the end of a run
"""
