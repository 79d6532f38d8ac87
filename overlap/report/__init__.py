"""``overlap report``: what a run reached, what it warns of, its curves and samples, as one HTML file.

Consumes  a RunData, or several to be compared; produces report.html
Waits for the disk
Woken by  the end of a run, ``overlap report``, ``overlap.write_report``
"""
