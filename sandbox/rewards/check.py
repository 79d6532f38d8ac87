"""Test a reward function: call it with labelled programs, and count everything that goes wrong.

    samples (the zoo, pairs, a JSONL file) ──▶ callers, each a process (sandbox.rewards.caller) ──▶ Findings

false accept   a wrong or hostile program got full reward       crash     the function raised, or died
false reject   a right program did not get it                   hang      no answer before the deadline
masked         None: it cannot judge this program               leak      processes or files that outlive a call
disagreement   two calls with the same program differ

How severe: critical, a hostile program is paid, so that a policy learns to cheat; high, a reward is wrong; medium,
there is none, or another one the next time; low, something is left behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from queue import SimpleQueue
from typing import Any, Final, Literal, get_args

from sandbox.errors import SandboxError, not_started
from sandbox.kernel import inherited
from sandbox.kernel.clear import remove_tree
from sandbox.kernel.orphan_cleanup import reserve_directory
from sandbox.terminal import current_environment
from sandbox.zoo.exhibits import LabelledProgram

_START_S: Final = 300.0  # an import may bring in a machine-learning library
_MARGIN_S: Final = 30.0
_END_S: Final = 5.0


class RewardUnusable(SandboxError):
    """The reward function cannot be imported, or its process cannot be kept alive."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options for the calls of a reward function."""

    target: str
    """module:function or file.py:function."""
    accept: float = 1.0
    """A score from here up is full reward."""
    deadline_s: float = 10.0
    repeats: int = 2
    workers: int = 1
    style: str = ""
    """Name of a style of sandbox.rewards.styles; "": the one that fits its parameters."""
    row: str = ""
    """module:function that makes the columns of a problem; "": those of public data sets."""
    bare: bool = False
    """Answers are programs without a code fence."""


@dataclass(slots=True)
class Tried:
    """All calls with one sample."""

    sample: LabelledProgram
    replies: list[dict[str, Any]] = field(default_factory=list)

    def paid(self, accept: float) -> list[bool | None]:
        """Per call: full reward, or not, or None for masked, crashed and hung ones."""
        return [None if reply["score"] is None else reply["score"] >= accept for reply in self.replies]


Severity = Literal["critical", "high", "medium", "low"]


@dataclass(frozen=True, slots=True)
class RewardFinding:
    """One thing that is wrong."""

    severity: Severity
    kind: str
    id: str
    """Name of the sample."""
    detail: str = ""


@dataclass(slots=True)
class Findings:
    """The report. ``findings`` has all, worst first; the lists hold their samples' ids, and what a crash said."""

    target: str
    style: str = "plain"
    findings: list[RewardFinding] = field(default_factory=list)
    samples: int = 0
    calls: int = 0
    false_accepts: list[str] = field(default_factory=list)
    false_rejects: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    disagreements: list[str] = field(default_factory=list)
    masked: list[str] = field(default_factory=list)
    """The function returned None for these, which is no finding."""
    leaked_processes: int = 0
    leaked_files: int = 0
    latency_p50_s: float | None = None
    latency_p99_s: float | None = None

    @property
    def clean(self) -> bool:
        return not self.findings


_LISTS: Final = {
    "false accept": "false_accepts",
    "false reject": "false_rejects",
    "crash": "crashes",
    "hang": "hangs",
    "disagreement": "disagreements",
}


def check_reward(options: Options, samples: Iterable[LabelledProgram]) -> tuple[Findings, list[Tried]]:
    """Call the function with every sample. Raises RewardUnusable when it cannot be called at all."""
    idle: SimpleQueue[_Caller] = SimpleQueue()

    def run(sample: LabelledProgram) -> Tried:
        caller = idle.get()
        try:
            return caller.run(sample)
        finally:
            idle.put(caller)

    with ThreadPoolExecutor(options.workers) as threads, ExitStack() as callers:  # these end first: no call goes on
        for _ in range(options.workers):
            caller = _Caller(options)
            callers.callback(caller.end)
            caller.start()
            idle.put(caller)
        tried = list(threads.map(run, samples))
    return summarize(options, tried, caller.style), tried


def summarize(options: Options, tried: list[Tried], style: str) -> Findings:
    found = Findings(options.target, style, samples=len(tried))
    latencies: list[float] = []
    for one in tried:
        found.calls += len(one.replies)
        found.leaked_processes += sum(reply["processes"] for reply in one.replies)
        found.leaked_files += sum(reply["files"] for reply in one.replies)
        latencies += [reply["latency_s"] for reply in one.replies if reply["score"] is not None]
        if all(reply["score"] is None and not reply["error"] and not reply["hang"] for reply in one.replies):
            found.masked.append(one.sample.id)
        for finding in _findings(one, options.accept):
            found.findings.append(finding)
            if finding.kind in _LISTS:
                said = f"{finding.id}: {finding.detail}" if finding.kind == "crash" else finding.id
                getattr(found, _LISTS[finding.kind]).append(said)
    found.findings.sort(key=lambda finding: get_args(Severity).index(finding.severity))
    if latencies:
        latencies.sort()
        found.latency_p50_s = latencies[len(latencies) // 2]
        found.latency_p99_s = latencies[min(len(latencies) - 1, int(len(latencies) * 0.99))]
    return found


def _findings(one: Tried, accept: float) -> Iterator[RewardFinding]:
    """Yield what is wrong with the replies to one sample."""
    name, replies, paid = one.sample.id, one.replies, one.paid(accept)
    if not one.sample.right and True in paid:
        worst: Severity = "critical" if one.sample.hostile else "high"
        kind = "hostile" if one.sample.hostile else "wrong"
        yield RewardFinding(worst, "false accept", name, f"a {kind} program got full reward")
    if one.sample.right and False in paid:
        scores = ", ".join(f"{reply['score']:g}" for reply in replies if reply["score"] is not None)
        yield RewardFinding("high", "false reject", name, f"a right program got {scores}")
    if error := next((reply["error"] for reply in replies if reply["error"]), ""):
        yield RewardFinding("medium", "crash", name, error)
    if any(reply["hang"] for reply in replies):
        yield RewardFinding("medium", "hang", name)
    if len({(reply["score"], bool(reply["error"]), reply["hang"]) for reply in replies}) > 1:
        yield RewardFinding("medium", "disagreement", name)
    left = {what: sum(reply[what] for reply in replies) for what in ("processes", "files")}
    if any(left.values()):
        said = ", ".join(f"{count} {what}" for what, count in left.items() if count)
        yield RewardFinding("low", "leak", name, said)


class _Caller:
    """A process that calls the function; started again when a program kills it."""

    def __init__(self, options: Options) -> None:
        self.options, self.style = options, ""
        self.process: subprocess.Popen[bytes] | None = None
        self._lock = threading.RLock()  # for start and end: a call may be in hand in another thread
        self._over = False

    def run(self, sample: LabelledProgram) -> Tried:
        tried = Tried(sample)
        for _ in range(self.options.repeats):
            tried.replies.append(self._call(sample))
            if tried.replies[-1]["hang"]:
                break  # it would only hang again
        return tried

    def start(self) -> None:
        """Raises RewardUnusable where it cannot import the function, SandboxError where it cannot be started."""
        with self._lock:
            if self._over:
                raise CancelledError
            try:
                self._spawn()
            except OSError as error:
                raise SandboxError(not_started("the process that calls it", error)) from error
        ready = self._reply(_START_S, f"it was not imported within {_START_S:g} s", "the process that imports it ended")
        if "error" in ready:
            self.close()
            raise RewardUnusable(ready["error"])
        self.style = str(ready["style"])

    def _spawn(self) -> None:
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        boot = f"import sys; sys.path.append({root!r}); from sandbox.rewards.caller import main; main()"
        with ExitStack() as undo:
            self.sock, theirs = inherited.connected_sockets()
            undo.callback(self.sock.close)
            with theirs:
                self.directory = reserve_directory()  # ours to remove, however this or a later process ends
                os.mkdir(self.directory, 0o700)
                undo.callback(remove_tree, self.directory)
                self.process = subprocess.Popen(
                    [sys.executable, "-c", boot, str(theirs.fileno()), json.dumps(asdict(self.options))],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env=current_environment() | {"TMPDIR": self.directory},
                    start_new_session=True,
                )
            undo.pop_all()
        self.stream = self.sock.makefile("rw", encoding="utf-8")

    def _call(self, sample: LabelledProgram) -> dict[str, Any]:
        late, dead = "it stopped the process that called it", "it killed the process that called it"
        program = {"program": sample.program.source, "language": sample.program.language, "row": sample.row}
        request = {"problem": sample.problem.to_json(), **program}
        reply = self._reply(self.options.deadline_s + _MARGIN_S, late, dead, request)
        if "unusable" in reply:
            raise RewardUnusable(reply["unusable"])
        if "score" in reply:
            return reply
        self.close()
        self.start()
        return {"score": None, "hang": False, "latency_s": None, "processes": 0, "files": 0, **reply}

    def _reply(self, timeout_s: float, late: str, dead: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        """The next line, after the request; an "error" of these texts where the process is silent, or dead."""
        self.sock.settimeout(timeout_s)
        try:
            if request is not None:
                self.stream.write(json.dumps(request) + "\n")
                self.stream.flush()
            line = self.stream.readline()
        except OSError as error:
            return {"error": late if isinstance(error, TimeoutError) else dead}
        return json.loads(line) if line else {"error": dead}

    def end(self) -> None:
        """Close, for good: a call in hand ends, and no other begins."""
        with self._lock:
            self._over = True
            self.close()

    def close(self) -> None:
        with self._lock:
            if self.process is None:
                return
            self.process.terminate()  # it ends what its calls have started, see `caller`
            try:
                self.process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None
            self.sock.close()  # after its end: it has no one to answer
            remove_tree(self.directory)
