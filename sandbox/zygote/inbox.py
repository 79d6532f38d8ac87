"""The zygote's side of the control socket: requests in their order, and the message that cancels them.

    request   a line "program, runs left, hold?", then {"mode": "exec" | "python" | "cancel" | "forget" | "lap", ...},
              with the descriptors of a run
    answers   a list, in the order of their requests

The judge may send further requests during a run, so that no run waits for the judge; a cancel then concerns the current
run and all queued ones. Every request is answered exactly once. Waking the judge costs more than most answers, so an
answer may be held until the next is ready, until there is nothing to do, or until a check finds that a run takes long.
"""

from __future__ import annotations

import json
import select
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from sandbox.kernel import linux

Request = dict[str, Any]

CANCEL: Final = b'0 0 0\n{"mode": "cancel"}'
FORGET: Final = b'0 0 0\n{"mode": "forget"}'
_MESSAGE_MAX: Final = 128 << 10
_FDS_MAX: Final = 32
AHEAD: Final = 4
"""Runs that a judge may have started beyond the one that it waits for."""


class OwnerGone(Exception):
    """The judge closed the control socket: die with everything."""


class Inbox:
    """Messages of the judge. `cancelled` in a returned request means that it must not start."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.waiting: deque[tuple[Request, list[int]]] = deque()
        self._buffer = bytearray(_MESSAGE_MAX)
        self._body, self._same = b"", Request()  # of the last message: most runs of a program ask for the same
        self._held: list[dict[str, Any]] = []
        self._lap: Request | None = None
        self._poller = select.poll()
        self._poller.register(sock, select.POLLIN)

    def fileno(self) -> int:
        return self.sock.fileno()

    def next(self) -> tuple[Request, list[int]]:
        """Return the next run; waits for it. Raises OwnerGone."""
        while not self.waiting:
            if self._held and not self._poller.poll(0):
                self.flush()
            self.cancelled()  # a cancel here was meant for a run that has ended
        self._lap = None  # and so was this
        return self.waiting.popleft()

    def take_lap(self) -> Request | None:
        """New limits of the current run, if they were sent: cpu_s and wall_s."""
        lap, self._lap = self._lap, None
        return lap

    def answer(self, reply: dict[str, Any], fds: list[int], *, hold: bool) -> None:
        """Send the result of a run after the held ones; or `hold` it."""
        self._held.append(reply)
        if fds or not hold or len(self._held) > AHEAD:
            self.flush(fds)

    def flush(self, fds: Sequence[int] = ()) -> None:
        """Send the answers that are held."""
        if self._held:
            socket.send_fds(self.sock, [json.dumps(self._held).encode()], fds)
            self._held.clear()

    def cancelled(self) -> bool:
        """Read one message, waiting for it; returns whether it is a cancel.

        A request is kept for `next`. Raises OwnerGone.
        """
        data, fds = linux.recv_fds_into(self.sock, self._buffer, _FDS_MAX)
        if not data:
            raise OwnerGone
        place, _, body = data.partition(b"\n")
        if body != self._body:
            self._body, self._same = body, json.loads(body)
        number, left, hold = map(int, place.split())
        request = {**self._same, "series": [number, left], "hold": hold}
        if request["mode"] == "lap":
            self._lap = request
            return False
        if request["mode"] != "cancel":
            self.waiting.append((request, fds))
            return False
        for behind, _ in self.waiting:
            behind["cancelled"] = True
        return True
