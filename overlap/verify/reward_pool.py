"""Reward functions of the user, each call in a worker process with a hard deadline.

A worker that hangs or dies is killed with all its descendants and replaced; a reward function that raises is the
caller's fault and never a reward of 0.
"""

from __future__ import annotations

import asyncio
import importlib
import io
import queue
import sys
import threading
import time
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlap.core import Prompt, Task
from overlap.errors import ConfigError, VerifierError
from overlap.process import process_tree
from overlap.verify.reward_worker import KILL_S, Hung, RewardFault, Worker, WorkerLost, shortened
from overlap.verify.shared import Dumps


@dataclass(frozen=True, slots=True)
class TimedReward:
    """A reward, and when (``time.monotonic()``) a worker began and ended it."""

    value: float | None
    started_s: float
    finished_s: float


class RewardPool:
    """``workers`` processes that call ``task.reward(prompt, answer, None)``, each call at most ``wall_s`` seconds.

    Constructing it starts nothing. What the workers print goes to ``log``, or else to this process's own output; their
    temporary files go to ``scratch``, the directory of the run. ``tell`` is called with a line when a call has not
    ended at its deadline.
    """

    def __init__(
        self,
        task: Task,
        workers: int,
        wall_s: float,
        log: Path | None = None,
        scratch: Path | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._task, self._wall_s, self._log, self._scratch, self._tell = task, wall_s, log, scratch, tell
        self._workers = workers
        self._dumps = Dumps(lambda prompt: self._dump(prompt, f"prompt {prompt.id!r}"))
        self._hung = 0
        """Calls that hung before any returned; -1 when one has."""
        self._payload: bytes | None = None
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="reward")
        self._idle: queue.SimpleQueue[Worker | None] = queue.SimpleQueue()
        for _ in range(workers):
            self._idle.put(None)
        self._guard = threading.Lock()
        self._live: set[Worker] = set()
        self._closed = False

    async def start(self) -> None:
        """Start one worker now, to see that the task can be sent. Raises ConfigError, VerifierError."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._warm)

    async def reward(self, prompt: Prompt, answer: str) -> TimedReward:
        """The reward of an answer. Raises WorkerLost, RewardFault, ConfigError, VerifierError.

        A call that hangs is told at its deadline and costs its sample; when no call has returned yet, and as many hung
        as there are workers, it is a RewardFault.
        A cancelled call that was begun keeps its worker until it ends or its deadline comes.
        """
        loop = asyncio.get_running_loop()
        try:
            call = loop.run_in_executor(self._threads, self._reward, prompt, answer)
        except RuntimeError as error:  # the machine has no thread left, or we are closed
            raise WorkerLost(f"no thread can be started for a reward: {error}") from error
        try:
            return await call
        except Hung as hung:
            if self._tell is not None:
                name = f"{type(self._task).__qualname__}.reward"
                self._tell(f"{name} {hung.what}, for prompt {prompt.id!r}; the sample is masked")
            raise

    def pids(self) -> tuple[int, ...]:
        """Pids of the workers."""
        with self._guard:
            return tuple(worker.pid for worker in self._live)

    async def close(self) -> None:
        """Kill all workers with their descendants, and end the threads. Safe to call twice."""
        with self._guard:
            self._closed = True
            victims = list(self._live)
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._end, victims)

    def _end(self, victims: list[Worker]) -> None:
        process_tree.kill_tree([worker.pid for worker in victims], KILL_S, reap=False)
        self._threads.shutdown(wait=True)  # their workers are dead, so nothing holds them up
        for worker in victims:
            self._retire(worker)

    def _warm(self) -> None:
        worker = self._idle.get_nowait()
        try:
            worker = worker or self._spawn()
        except WorkerLost as error:
            raise VerifierError(f"rewards cannot be had: {error}") from error
        finally:
            self._idle.put(worker)

    def _reward(self, prompt: Prompt, answer: str) -> TimedReward:
        dumped = self._dumps.of(prompt)
        worker = self._idle.get_nowait()  # there are as many threads as places
        try:
            for attempt in (1, 2):
                worker = worker or self._spawn()
                started = time.monotonic()
                try:
                    kind, value = worker.call(dumped, answer, self._wall_s)
                    self._hung = -1
                    break
                except WorkerLost as error:
                    self._retire(worker)
                    worker = None
                    if isinstance(error, Hung):
                        self._count(error)
                    if attempt == 2 or isinstance(error, Hung):  # what hung will hang again
                        raise
        finally:
            self._idle.put(worker)
        if kind != "reward":
            raise RewardFault(value)
        return TimedReward(value, started, time.monotonic())

    def _count(self, hung: Hung) -> None:
        with self._guard:
            self._hung += self._hung >= 0
            never = self._hung >= self._workers
        if never:
            way_out = "raise verify.cpu_s if it may take longer"
            raise RewardFault(f"{hung.what}, and no call has returned yet ({way_out})") from hung

    def _spawn(self) -> Worker:
        if self._payload is None:
            self._payload = self._dump(self._task, "the task")
        worker = Worker(self._log, self._scratch)
        with self._guard:
            self._live.add(worker)
            closed = self._closed
        try:
            if closed:
                raise WorkerLost("the reward workers are closed")
            fault = worker.load(self._payload)
        except WorkerLost:
            self._retire(worker)
            raise
        if fault:
            self._retire(worker)
            raise VerifierError(f"the reward worker could not load {type(self._task).__qualname__}: it {fault}")
        return worker

    def _retire(self, worker: Worker) -> None:
        with self._guard:
            known = worker in self._live
            self._live.discard(worker)
        if known:
            worker.end()

    def _dump(self, item: object, what: str) -> bytes:
        try:
            return _by_value(item)
        except Exception as error:  # dill raises whatever a __reduce__ raises
            name = type(self._task).__qualname__
            way_out = f"{what} cannot be sent to a reward worker ({shortened(error, str)}); keep open handles out of it"
            raise ConfigError("task", name, way_out) from error


def _by_value(item: object) -> bytes:
    """The item with the globals that it uses, and no others; modules go by name."""
    import dill  # type: ignore[import-untyped]

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
