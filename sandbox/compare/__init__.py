"""Compare outputs (bytes and a mode, yes or no), and encode values that cross the jail's boundary.

Knows nothing of programs, problems or processes.
"""
