"""From the name of a policy to a Hugging Face checkpoint directory.

Purpose: engine and learner get a path. Knows nothing of what loads it.
"""
