"""Reads contest packages (Kattis/ICPC problem package format).

Consumes  a directory with problem.yaml, data/, submissions/; versions legacy, legacy-icpc, 2023-07-draft, 2025-09
Produces  a Package: its Problem, its test data and settings, and what its authors expect of each submission

What judging depends on and cannot be followed is refused by name; what else is not followed is noted by name. PyYAML is
imported when a package is read, and by nothing else in the sandbox.
"""

from sandbox.packages import inputs
from sandbox.packages.expectations import Author, Expected, Rule, SubmissionOutcome, surprises
from sandbox.packages.grading import Found, Grade, Grader
from sandbox.packages.inputs import Inputs
from sandbox.packages.links import check_links
from sandbox.packages.package import ANSWER_FILE, Package, read_package
from sandbox.packages.programs import Sources, Unsupported, read_sources

__all__ = [
    "ANSWER_FILE",
    "Author",
    "Expected",
    "Found",
    "Grade",
    "Grader",
    "Inputs",
    "Package",
    "Rule",
    "Sources",
    "SubmissionOutcome",
    "Unsupported",
    "check_links",
    "inputs",
    "read_package",
    "read_sources",
    "surprises",
]
