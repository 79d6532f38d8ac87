"""Reads contest packages (Kattis/ICPC problem package format).

Consumes  a directory with problem.yaml, data/, submissions/; versions legacy, legacy-icpc, 2023-07-draft, 2025-09
Produces  a Package: its Problem, its test data and settings, and what its authors expect of each submission

What judging depends on and cannot be followed is refused by name; what else is not followed is noted by name. PyYAML is
imported when a package is read, and by nothing else in the sandbox.
"""
