"""Serves the policy to the code that rolls an episode out: chat requests in, exact tokens kept, one trajectory per
episode.

consumes: requests, messages                 produces: trajectories of many turns
waits for: slots, the engine, the rollout    woken by: the end of a response, or of a rollout

Knows nothing of how a reward is made.
"""
