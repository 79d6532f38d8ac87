"""One worker: a jail, a builder and a judge, fed with jobs by the supervisor over one socket, one job at a time.

consumes  head {"id"}, body {"problem", "program", "stop"}      produces  {"id", "judgement"} or {"id", "error"}
waits for the socket; woken by a job, or in the middle of one by a cancel message; ends when the socket closes

It holds the expected outputs, and so never runs inside a jail. A jail that fails is replaced for the next job, and one
that has run long enough as well.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Final, cast

from sandbox import linux, wire
from sandbox.build import Builder
from sandbox.core import Isolation, Problem, Program
from sandbox.errors import WorkerDied, to_wire
from sandbox.jail import Jail
from sandbox.judging import Judge

RECYCLE_AFTER_RUNS: Final = 5000


def main() -> None:
    """argv: socket descriptor, isolation, run directory, parent pid."""
    fd, isolation, run_dir, parent = sys.argv[1:]
    linux.die_with_parent(int(parent))
    worker = _Worker(socket.socket(fileno=int(fd)), isolation, run_dir)
    try:
        while (message := wire.receive(worker.sock)) is not None:
            head, body = message
            if "cancel" not in head:  # a cancel here was meant for a job that has ended
                worker.sock.sendall(wire.pack({"id": head["id"], **worker.answer(body)}))
    finally:
        worker.close()


class _Worker:
    def __init__(self, sock: socket.socket, isolation: str, run_dir: str) -> None:
        self.sock = sock
        self.isolation = isolation
        self.run_dir = run_dir
        self.builder = Builder(os.path.join(run_dir, "build"))
        self.jail: Jail | None = None

    def answer(self, body: bytes) -> wire.Head:
        """A judgement, or our error: whatever it is, it is told to the caller and never scored."""
        try:
            job = wire.parse(body)
            problem, program = Problem.from_json(job["problem"]), Program(**job["program"])
            judge = Judge(self._jail(), self.builder, job["stop"], self.sock.fileno())
            return {"judgement": judge.judge(problem, program).to_json()}
        except Exception as error:
            if isinstance(error, WorkerDied):
                self.close()
            return {"error": to_wire(error)}

    def _jail(self) -> Jail:
        if self.jail is not None and self.jail.runs > RECYCLE_AFTER_RUNS:
            self.close()
        if self.jail is None:
            self.jail = Jail(cast(Isolation, self.isolation), run_dir=self.run_dir, shared=self.builder.shared)
            self.isolation = self.jail.tier  # what `auto` found: the next jail may not be weaker
        return self.jail

    def close(self) -> None:
        if self.jail is not None:
            self.jail.close()
            self.jail = None
