"""Training by DeepSpeed's ZeRO: all that the learner knows of that library. ``backend`` is what the rest of it uses."""
