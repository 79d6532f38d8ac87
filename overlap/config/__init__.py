"""The configuration of a run: fields with their bounds, and how they are read.

Purpose: one frozen :class:`Config`, checked where it is made. Knows nothing of what is done with it.
"""
