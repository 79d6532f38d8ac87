"""Reads what a run has left in its directory, for people and for tools.

Consumes  a run directory, also one of a run that goes on; produces what is in it, and warnings
Waits for the disk
Woken by  ``overlap show``, ``view`` and ``report``, the end of a run, and by ``overlap.load_run``
"""
