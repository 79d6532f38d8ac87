"""Data types: problems, programs, limits, judgements. They validate themselves on construction.

Everything else in the sandbox uses them. They know nothing of how a program is judged.
"""
