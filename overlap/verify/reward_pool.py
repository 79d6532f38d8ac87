"""Reward functions of the user, each call in a worker process with a hard deadline.

A worker that hangs or dies is killed with all its descendants and replaced, and asked for the reward of a plain answer:
if that comes, the answer was to blame, and its reward is 0, as no policy may choose to be masked; else the sample is
masked. A reward function that raises is the caller's fault and never a reward of 0.
"""

from __future__ import annotations

import asyncio
import importlib
import io
import sys
import threading
import time
import types
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import dill

from overlap.core import Prompt, Task, shortened
from overlap.core.errors import ConfigError, VerifierError
from overlap.core.user_code import RewardFault, method_name
from overlap.verify.reward_worker import RewardWorker, WorkerLost

T = TypeVar("T")
TRIES = 2
"""Calls for an answer whose worker is lost."""
PROMPTS_MAX, PROMPTS_BYTES_MAX = 256, 64 << 20
"""Prompts that are kept as bytes, for their further samples: one may hold megabytes of the task's data."""
PLAIN = "The answer is 0.\n```python\nprint(0)\n```\n"
"""From this every reward function that works returns: a text, a number, a program."""


@dataclass(frozen=True, slots=True)
class TimedReward:
    """A reward, and when (``time.monotonic()``) a worker began and ended it."""

    value: float | None
    started_s: float
    finished_s: float
    blamed: str = ""
    """The way in which its answer ended the worker's call, which a plain answer does not; "" without one."""


class RewardPool:
    """``workers`` processes that call ``task.reward(prompt, answer, None)``, each call at most ``wall_s`` seconds.

    Constructing it starts nothing. A thread of its own waits for each call. What the workers print goes to ``log``, or
    else to this process's own output; their temporary files go to ``scratch``, the directory of the run. ``notify`` is
    called with a line when a call has not ended at its deadline.
    """

    def __init__(
        self,
        task: Task,
        workers: int,
        wall_s: float,
        log: Path | None = None,
        scratch: Path | None = None,
        notify: Callable[[str], None] | None = None,
    ) -> None:
        self._task, self._wall_s, self._log, self._scratch, self._notify = task, wall_s, log, scratch, notify
        self._workers = workers
        self._dumped, self._dumping = dict[int, tuple[Prompt, bytes]](), threading.Lock()
        """By identity, the prompt, which is held so that its identity stays its own, and its bytes; used last is last.
        """
        self._threads = ThreadPoolExecutor(workers, "reward")
        self._lock = threading.Lock()
        """Guards all fields below."""
        self._hung = 0
        """Calls that hung before any returned; -1 when one has."""
        self._payload: bytes | None = None
        self._idle, self._live = list[RewardWorker](), set[RewardWorker]()
        self._closed = False

    async def start(self) -> None:
        """Start one worker now, to see that the task can be sent. Raises ConfigError, VerifierError."""
        self._idle.append(await self._in_thread(self._take))

    async def reward(self, prompt: Prompt, answer: str, token_ids: Sequence[int] = ()) -> TimedReward:
        """The reward of an answer that consists of these tokens. Raises WorkerLost, RewardFault, ConfigError,
        VerifierError.

        A call that hangs or kills its worker is reported; its answer gets 0 where one for a plain answer returns. Where
        that hangs too, and no call has returned yet, as many as there are workers are a RewardFault.
        A cancelled call that was begun keeps its worker until it ends or its deadline comes.
        """
        try:
            got = await self._in_thread(self._reward, prompt, answer, token_ids)
        except WorkerLost as error:
            if error.hung:
                self._tell(error.what, prompt, "the sample is masked")
            raise
        if got.blamed:
            self._tell(got.blamed, prompt, "it returns from a plain answer, so the reward is 0")
        return got

    def pids(self) -> tuple[int, ...]:
        """Pids of the workers and of what they have started."""
        return tuple(pid for worker in list(self._live) for pid in worker.pids())

    async def close(self) -> None:
        """Kill all workers with their descendants. Safe to call twice."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._lock:
            self._closed = True
        for worker in list(self._live):
            worker.kill()  # its thread wakes
        self._threads.shutdown()
        for worker in list(self._live):
            self._retire(worker)

    async def _in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        try:
            running = asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)
        except RuntimeError as error:
            raise WorkerLost(f"no thread can be started for a reward: {error}") from error
        return await running

    def _reward(self, prompt: Prompt, answer: str, token_ids: Sequence[int]) -> TimedReward:
        tokens = list(token_ids) if getattr(self._task, "reward_of_tokens", None) is not None else None
        data, asked = self._bytes_of(prompt), time.monotonic()
        for _ in range(TRIES):
            try:
                return self._ask(data, answer, tokens)
            except WorkerLost as error:
                lost = error
            if lost.hung:  # what hung will hang again
                break
        if not lost.what:
            raise lost
        try:
            with suppress(RewardFault):  # it has come back
                self._ask(data, prompt.prefill + PLAIN, None if tokens is None else [])
        except WorkerLost:
            self._count(lost)
            raise lost from None
        return TimedReward(0.0, asked, time.monotonic(), lost.what)

    def _bytes_of(self, prompt: Prompt) -> bytes:
        with self._dumping:  # samples of one prompt come together: the first dumps it, the others wait
            known = self._dumped
            found = known.pop(id(prompt), None) or (prompt, self._dump(prompt, f"prompt {prompt.id!r}"))
            known[id(prompt)] = found
            while len(known) > PROMPTS_MAX or sum(len(data) for _, data in known.values()) > PROMPTS_BYTES_MAX:
                del known[next(iter(known))]
        return found[1]

    def _ask(self, data: bytes, answer: str, tokens: list[int] | None) -> TimedReward:
        """One call. Raises WorkerLost, after which the worker is gone, and RewardFault."""
        worker, started = self._take(), time.monotonic()
        with ExitStack() as undo:
            undo.callback(self._retire, worker)
            value, fault = worker.call(data, answer, tokens, self._wall_s)
            undo.pop_all()
        with self._lock:
            self._hung = -1
            self._idle.append(worker)
        if fault:
            raise RewardFault(fault)
        return TimedReward(value, started, time.monotonic())

    def _tell(self, what: str, prompt: Prompt, outcome: str) -> None:
        if self._notify is not None:
            self._notify(f"{method_name(self._task, 'reward')} {what}, for prompt {prompt.id!r}; {outcome}")

    def _count(self, lost: WorkerLost) -> None:
        with self._lock:
            self._hung += lost.hung and self._hung >= 0
            often = self._hung >= self._workers
        if often:
            way_out = "raise verify.cpu_s if it may take longer"
            raise RewardFault(f"{lost.what}, and no call has returned yet ({way_out})") from lost

    def _take(self) -> RewardWorker:
        """An idle worker that has loaded the task, or a new one. Raises WorkerLost, ConfigError, VerifierError."""
        with self._lock:
            if self._closed:
                raise WorkerLost("the reward workers are closed")
            if self._idle:
                return self._idle.pop()
            if self._payload is None:
                self._payload = self._dump(self._task, "the task")
            worker = RewardWorker(self._log, self._scratch)
            self._live.add(worker)
        with ExitStack() as undo:
            undo.callback(self._retire, worker)
            if fault := worker.load(self._payload):
                raise VerifierError(f"the reward worker could not load {type(self._task).__qualname__}: it {fault}")
            undo.pop_all()
        return worker

    def _retire(self, worker: RewardWorker) -> None:
        worker.close()
        with self._lock:
            self._live.discard(worker)

    def _dump(self, item: object, what: str) -> bytes:
        try:
            return _by_value(item)
        except Exception as error:  # dill raises whatever a __reduce__ raises
            name = type(self._task).__qualname__
            way_out = f"{what} cannot be sent to a reward worker ({shortened(error, str)}); keep open handles out of it"
            raise ConfigError("task", name, way_out) from error


def _by_value(item: object) -> bytes:
    """The item with the globals that it uses, and no others; modules go by name."""

    def save_module(pickler: Any, module: types.ModuleType) -> None:
        if module.__name__ != "__main__" and sys.modules.get(module.__name__) is module:
            pickler.save_reduce(importlib.import_module, (module.__name__,), obj=module)
        else:
            dill.Pickler.dispatch[types.ModuleType](pickler, module)

    with io.BytesIO() as data:
        pickler = dill.Pickler(data, recurse=True)
        # dill sends a module outside site-packages with all that it holds: of a checkout, the whole package
        pickler.dispatch = type(pickler.dispatch)(pickler.dispatch | {types.ModuleType: save_module})
        pickler.dump(item)
        return data.getvalue()
