"""From the name of a policy to a Hugging Face checkpoint directory.

What for: engine and learner get a path. Knows nothing of what loads it.
"""
