"""What a run has kept, used again: its samples to learn from, its durations to simulate another schedule by.

Starts no engine and no verifier.
"""
