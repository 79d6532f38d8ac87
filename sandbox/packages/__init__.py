"""Read contest packages (Kattis/ICPC problem package format), and judge their submissions.

Consumes  a directory with problem.yaml, data/, submissions/
Produces  expected and found verdicts of each submission
Waits for the jail, submission by submission
Woken by  the end of a run

Parts of the format that verdicts depend on and that are not supported are refused by name; other parts are noted by
name. PyYAML is imported when a package is read, and by nothing else in the sandbox.
"""
