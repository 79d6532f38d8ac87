"""What a reward worker's process runs: ``python -m overlap.verify.reward_host FD`` serves calls from the socket FD.

A module of its own: what is defined in ``__main__`` of a script or a notebook is loaded beside nothing of ours.
"""

from overlap.verify.reward_worker import serve_rewards

if __name__ == "__main__":
    serve_rewards()
