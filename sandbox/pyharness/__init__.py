"""The harness beside the user's Python program, in its process: starts it, takes its answer, and ends it.

Knows nothing of jails and holds no expected output. Imports nothing here, because every page costs each fork.
"""
