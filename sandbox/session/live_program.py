"""One program and its state, in a jail of its own: called over a socket, its output read from pipes.

    caller ── a token, with descriptors for code, stdout, stderr ──▶ program
           ◀── the token, value, error ────────────────────────────
           ◀── stdout, stderr: a pipe each, new for each call ─────

The program is hostile, and everything in its jail is the program: it may answer a call with anything, as it may print
anything. An answer needs the call's token: tokens are new for each call, and one that is wrong, or comes without a
call, ends the program. What is reported of its end comes from the jail's watcher.
"""

from __future__ import annotations

import hmac
import json
import marshal
import os
import select
import socket
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from sandbox.core.nouns import Isolation, Limits
from sandbox.errors import Cancelled, WorkerDied
from sandbox.jail.jail import Jail
from sandbox.jail.run import JailedRun
from sandbox.kernel.linux import make_memfd
from sandbox.session.output import SHOWN_BYTES, Ended, Output, Stream, read_end
from sandbox.zygote.run_clock import WALL_STRETCH

_KERNEL: Final = Path(__file__).with_name("_kernel.py")
_WORD_BYTES: Final = 16
_REPLY_MAX: Final = 128 << 10
_CHUNK: Final = 1 << 16
_GRACE_S: Final = 15.0
_FAREWELL_S: Final = 5.0  # until the jail reports the end of a program that has closed its channel
_WHOLE_S: Final = 7200.0  # CPU and wall time of a state, however many calls it answers
_NONCE_BYTES: Final = 32


@dataclass(eq=False, slots=True)
class _Call:
    """One call that is under way."""

    word: bytes
    shown: tuple[Stream, Stream]
    streams: dict[int, Stream] = field(default_factory=dict)
    """By this process's end of each pipe; a pipe that has ended is removed."""
    value: str | None = None
    error: str | None = None

    def drain(self, fd: int) -> bool:
        """Read what is there. Returns False at the end of the data, or when no more is available now."""
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            del self.streams[fd]
            return False
        self.streams[fd].add(data)
        return True

    def floods(self, limit: int) -> bool:
        return any(stream.size > limit for stream in self.shown)

    def take(self, message: bytes) -> bool:
        """Return whether this is the answer."""
        if not hmac.compare_digest(message[:_WORD_BYTES], self.word):
            return False
        try:
            answer = json.loads(message[_WORD_BYTES:])
        except (ValueError, RecursionError):
            return False
        if not isinstance(answer, list) or len(answer) != 2:  # an object or a text could be unpacked as well
            return False
        if not all(part is None or isinstance(part, str) for part in answer):
            return False
        # Half a character (a lone surrogate) as Python spells it: otherwise the text could not be written down.
        self.value, self.error = (part and part.encode(errors="backslashreplace").decode() for part in answer)
        return True


class LiveState:
    """Nothing is started before the first call. For one thread at a time; `cancel` may come from any."""

    def __init__(
        self, isolation: Isolation, limits: Limits, packages: Any, idle_s: float, shown_bytes: int = SHOWN_BYTES
    ) -> None:
        self._isolation, self._limits, self._packages, self._idle_s = isolation, limits, packages, idle_s
        self._shown_bytes, self._flood = shown_bytes, f"output limit of {limits.output_bytes} bytes"
        self._jail: Jail | None = None
        self._channel: socket.socket | None = None
        self._cancel = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def call(self, code: str, timeout_s: float) -> Output:
        """Run the code in the current state, or in a new one. Raises SandboxError: Cancelled after `cancel`."""
        start = time.monotonic()
        with ExitStack() as undo:
            undo.callback(self.close)
            running = self._running()
            jail, channel = running or self._begin()
            call, ending = self._ask(jail, channel, code, timeout_s)
            undo.pop_all()
        ended, cause = ending or (None, "")
        out, err = (stream.text() for stream in call.shown)
        return Output(out, err, call.value, call.error, ended, cause, running is None, time.monotonic() - start)

    def cancel(self) -> None:
        """Make the current or the next call raise Cancelled."""
        os.eventfd_write(self._cancel, 1)

    def close(self) -> None:
        """End the program and its jail; at most a few seconds. The next call starts both anew."""
        channel, self._channel = self._channel, None
        jail, self._jail = self._jail, None
        if channel is not None:
            channel.close()
        if jail is not None:
            jail.close()

    def end(self) -> None:
        """`close`, for good."""
        self.close()
        cancel, self._cancel = self._cancel, -1
        if cancel >= 0:
            os.close(cancel)

    def _running(self) -> tuple[Jail, socket.socket] | None:
        """Return the jail and the channel of a program that waits for a call.

        One that has ended, or has sent something without a call, is ended.
        """
        jail, channel = self._jail, self._channel
        if jail is None or channel is None:
            return None
        poller = select.poll()
        poller.register(jail, select.POLLIN)
        poller.register(channel, select.POLLIN)
        if not poller.poll(0):
            return jail, channel
        self._stop(jail, channel)
        return None

    def _stop(self, jail: Jail, channel: socket.socket) -> None:
        """End the program; the jail stays. Raises WorkerDied."""
        self._channel = None
        channel.close()
        jail.drop()

    def _begin(self) -> tuple[Jail, socket.socket]:
        """A new program. Raises SandboxError."""
        if self._jail is None:
            self._jail = Jail(self._isolation, packages=self._packages)
            self._isolation = self._jail.tier  # the tier that `auto` found: the next jail must not be weaker
        plain = {"kind": "stdio", "fn_name": None, "args": None, "steps": (), "argv": (), "preamble": ""}
        job = marshal.dumps({**plain, "source": _KERNEL.read_text(encoding="utf-8")}) + os.urandom(_NONCE_BYTES)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs, open(os.devnull, "r+b", buffering=0) as null:
            self._channel = ours
            whole = replace(self._limits, cpu_s=_WHOLE_S, wall_s=_WHOLE_S)
            self._jail.start(JailedRun(whole, job=job, pipes=(theirs.fileno(), null.fileno())))
        return self._jail, ours

    def _ask(
        self, jail: Jail, channel: socket.socket, code: str, timeout_s: float
    ) -> tuple[_Call, tuple[Ended, str] | None]:
        call = _Call(os.urandom(_WORD_BYTES), shown=(Stream(self._shown_bytes), Stream(self._shown_bytes)))
        with ExitStack() as stack:
            with ExitStack() as sent:
                fds = [make_memfd("call", code.encode("utf-8", "surrogatepass"), seal=True)]
                sent.callback(os.close, fds[0])
                for stream in call.shown:
                    source, target = os.pipe()
                    stack.callback(os.close, source)
                    sent.callback(os.close, target)
                    os.set_blocking(source, False)
                    call.streams[source] = stream
                    fds.append(target)
                jail.lap(min(self._limits.cpu_s, timeout_s), timeout_s)
                with suppress(BrokenPipeError, ConnectionResetError, BlockingIOError):
                    socket.send_fds(channel, [call.word], fds)  # the watcher reports why, or ends the program
            ending = self._listen(jail, channel, call, time.monotonic() + timeout_s * WALL_STRETCH + _GRACE_S)
            self._take_rest(call)
        if ending is None and call.floods(self._limits.output_bytes):
            ending = self._kill(jail, channel, self._flood)
        if ending is None:
            jail.lap(self._limits.cpu_s, self._idle_s)
        return call, ending

    def _listen(self, jail: Jail, channel: socket.socket, call: _Call, deadline: float) -> tuple[Ended, str] | None:
        """Wait for the answer (None), or return how the program ended."""
        closed = False
        while True:
            poller = select.poll()
            for fd in (jail.fileno(), self._cancel, *call.streams, *([] if closed else [channel.fileno()])):
                poller.register(fd, select.POLLIN)
            ready = dict(poller.poll(max(0.0, deadline - time.monotonic()) * 1000))
            if not ready and closed:
                return self._kill(jail, channel, "it closed the channel of its answers")
            if not ready:
                raise WorkerDied("a jail did not end its program in time")
            if self._cancel in ready:
                os.eventfd_read(self._cancel)
                raise Cancelled("the call was cancelled")
            for fd in ready.keys() & call.streams.keys():
                call.drain(fd)
            if call.floods(self._limits.output_bytes):
                return self._kill(jail, channel, self._flood)
            if channel.fileno() in ready:
                message = b""
                with suppress(ConnectionResetError):  # then no answer will come any more
                    message = channel.recv(_REPLY_MAX)
                if call.take(message):
                    return None
                closed = not message and bool(ready[channel.fileno()] & select.POLLHUP)
                if not closed:  # an empty message is an answer as well
                    return self._kill(jail, channel, "an answer that is none")
                deadline = min(deadline, time.monotonic() + _FAREWELL_S)  # mostly it has ended, and the jail says how
            if jail.fileno() in ready:
                self._channel = None
                channel.close()
                return read_end(jail.finish())

    def _kill(self, jail: Jail, channel: socket.socket, cause: str) -> tuple[Ended, str]:
        self._stop(jail, channel)
        return "killed", cause

    def _take_rest(self, call: _Call) -> None:
        """Read what is written already. A process that goes on writing is not waited for."""
        for fd in list(call.streams):
            while call.drain(fd) and not call.floods(self._limits.output_bytes):
                pass
