"""The table of languages, their toolchains on this machine, and the harness files around a program (``harness/``).

Everything that is specific to a language; knows nothing of jails.
"""
