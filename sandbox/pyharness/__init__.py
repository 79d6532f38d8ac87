"""What runs beside the user's Python program, in its process: starts it, takes its answer, and ends it.

Knows nothing of jails, and no expected output. It imports nothing here, as every page costs each fork.
"""

__all__ = ["_runner"]
