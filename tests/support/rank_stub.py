"""A double of a learner rank that serves calls as the real one does, without torch: ``python -m rank_stub FD``."""

import os
import signal
import sys
import time

from overlap.core.errors import RunDirError
from overlap.learner import rank


class Commands:
    """What a test asks of a rank."""

    def __init__(self, spec):
        self.spec = spec

    def rank(self):
        sys.stdout.write(f"rank {self.spec.rank} was asked\n")  # in one piece: ranks share the log
        return self.spec.rank

    def save(self, which):
        if self.spec.rank == which:
            raise RunDirError(f"rank {which} cannot write")
        return "saved"

    def step(self, which, error):
        if self.spec.rank == which:
            raise error

    def wait_for(self, path):
        path.with_name(f"begun-{self.spec.rank}").touch()
        while not path.exists():
            time.sleep(0.01)
        return "waited"

    def die(self, which):
        if self.spec.rank == which:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()

    def close(self):
        (self.spec.policy / f"closed-{self.spec.rank}").touch()


if __name__ == "__main__":
    rank._start = Commands
    sys.exit(rank.main())
