"""``overlap report``: what a run reached, what it warns of, its curves and samples, as one HTML file.

Consumes  a RunData, or several to be compared; produces report.html
Waits for the disk
Woken by  the end of a run, ``overlap report``, ``overlap.write_report``
"""

from overlap.report.at_the_end import report_at_the_end, run_that_ends, warnings_at_the_end
from overlap.report.compare import comparison_lines
from overlap.report.report import write_report

__all__ = ["comparison_lines", "report_at_the_end", "run_that_ends", "warnings_at_the_end", "write_report"]
