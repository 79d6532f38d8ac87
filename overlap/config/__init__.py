"""What a run is asked to do: fields with their bounds, and how they are read.

What for: one frozen :class:`Config`, checked where it is made. Knows nothing of what is done with it.
"""
