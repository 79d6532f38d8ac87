"""The asynchronous interface: N workers under one supervisor process judge programs.

consumes  judge(problem, program)                     produces  a Judgement, or raises SandboxError
          run(program)                                          a ProgramRun, without a verdict
waits for a slot in the queue, then for the supervisor's answer; woken by either; cancelling it cancels the job

    async with sandbox.Pool(workers=4) as pool:
        judgement = await pool.judge(problem, program)

A Pool can be made anywhere; processes, sockets and asyncio objects are made on the first await, in the loop that
awaits. They end with `close()`, with the loop's owner, or with the caller's process, however that dies.

A program under which three workers die, and three more after the control program was judged correctly (`control`), gets
a verdict. Only deaths after the program was handed to a jail count (`shared_flags`).

Order: the lowest turn first, and within a turn the longest expected job (`schedule`). Equal programs for equal problems
are judged once (`judgement_cache`). While workers are idle, the cases of a program that is known to be slow are spread
over them (`split`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import time
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar

from sandbox.core.checks import wrong_type
from sandbox.core.nouns import Isolation, Judgement, Limits, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.core.program_run import ProgramRun
from sandbox.errors import HANGS_MAX, Deaths, HeldUp, PoolClosed, SandboxError, TookDown, WorkerDied
from sandbox.jail.jail import find_packages
from sandbox.judging import control, single_run
from sandbox.languages.language import Language
from sandbox.languages.table import find_language
from sandbox.pool import split
from sandbox.pool.counts import Counts, PoolStats
from sandbox.pool.judgement_cache import JudgementCache
from sandbox.pool.link import Answer, Link, Ticket, TryFailed
from sandbox.pool.problem_memfd import Written
from sandbox.pool.quotas import cores, memory_bytes, too_much_memory
from sandbox.pool.schedule import History, longest_s
from sandbox.pool.slots import Slots
from sandbox.pool.store import held_most

__all__ = ["QUEUE_LIMIT", "Pool", "PoolStats"]

T = TypeVar("T")
QUEUE_LIMIT: Final = 1024
"""Jobs in progress, including jobs that wait for a worker."""


class Pool:
    """See the module.

    `workers=None` takes one per core that this process may use; more are started only with `oversubscribe`, because
    programs would wait for a core on the wall clock. `packages` of this interpreter (("numpy",)) are imported ahead for
    Python programs; raises ToolchainMissing for one that is not installed. `judge_once=False` judges a program even if
    an equal one was judged. The pool's folder is created in `directory`, or else in the temp folder.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        isolation: Isolation = "auto",
        packages: Sequence[str] = (),
        stop_at_first_failure: bool = True,
        judge_once: bool = True,
        queue_limit: int = QUEUE_LIMIT,
        nice: int = 5,
        oversubscribe: bool = False,
        directory: str = "",
    ) -> None:
        for name, value in (("workers", 1 if workers is None else workers), ("queue_limit", queue_limit)):
            if not isinstance(value, int) or isinstance(value, bool):
                raise wrong_type("pool", name, value, "a whole number")
        if workers is not None and workers < 1:
            raise ValueError(f"workers={workers}: a pool needs at least 1; None takes one per core")
        if queue_limit < 1:
            raise ValueError(f"queue_limit={queue_limit}: must be at least 1")
        available = cores()
        self.workers = (workers or available) if oversubscribe else min(workers or available, available)
        self.isolation = isolation
        self._packages = json.dumps(find_packages(packages))
        self.stop_at_first_failure = stop_at_first_failure
        self.queue_limit = queue_limit
        self.nice = nice
        self._directory = directory
        self._link: Link | None = None
        self._closed = False
        self._counts = Counts()
        self._once = JudgementCache() if judge_once else None
        self._builds = JudgementCache()
        """Results of compiling the programs of runs. Their artefacts are the workers'."""
        self._history = History()
        self._limit_bytes = 0
        """The largest memory limit so far."""
        self._wanted = 0
        """Number of workers that the current jobs would keep busy."""

    async def __aenter__(self) -> Pool:
        self._connect()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def judge(
        self,
        problem: Problem | Mapping[str, Any],
        program: Program | str | Mapping[str, Any],
        *,
        turn: int = 0,
        stop_at_first_failure: bool | None = None,
    ) -> Judgement:
        """Judge one program; both may be given as to `sandbox.judge`.

        Raises SandboxError for failures of the sandbox. Waits while `queue_limit` jobs are in progress, or as many as
        there are descriptors for their problems. Jobs of the lowest ``turn`` go first. `stop_at_first_failure` is the
        pool's, unless given. `queue_s` is the time in the queue; `run_s` is 0 when an equal program was judged.
        """
        start = time.monotonic()
        problem = Problem.of(problem)
        program = problem.program(program)
        self._counts.waiting += 1
        try:
            stop = self.stop_at_first_failure if stop_at_first_failure is None else stop_at_first_failure
            done, shared = await self._judge_once(problem, program, turn, stop)
        finally:
            self._counts.waiting -= 1
        spent = time.monotonic() - start
        run_s = 0.0 if shared else done.run_s
        done = dataclasses.replace(done, queue_s=max(0.0, spent - run_s), run_s=run_s)
        self._counts.record(done, shared=shared)
        return done

    async def run(
        self,
        program: Program | str | Mapping[str, Any],
        *,
        stdin: str = "",
        arguments: Sequence[str] = (),
        files: Mapping[str, str | bytes] = MappingProxyType({}),
        fetch_files: Sequence[str] = (),
        limits: Limits | None = None,
        turn: int = 0,
        asserts: bool = False,
    ) -> ProgramRun:
        """Run one program once, without a verdict; a program given as text is Python.

        `files` are put into its work directory first, and those of `fetch_files` are brought back from there however it
        ends (at most 64, of 64 MiB in all); names are relative. Bytes in `stdin` that are no UTF-8 are written as
        surrogates (`errors="surrogateescape"`). asserts: as with `java -ea`. Equal programs are compiled once, also
        when they come at once. Raises InvalidProblem and InvalidProgram, both ValueErrors, for what cannot be run, and
        SandboxError for failures of the sandbox.
        """
        start = time.monotonic()
        problem, fetch = (
            single_run.as_problem(stdin, arguments, files, limits),
            single_run.checked_names(fetch_files),
        )
        program = problem.program(program)
        self._counts.waiting += 1
        try:
            done = await self._run(problem, program, fetch, turn, asserts)
        finally:
            self._counts.waiting -= 1
        self._counts.runs += 1
        return dataclasses.replace(done, queue_s=max(0.0, time.monotonic() - start - done.run_s - done.compile_s))

    async def _run(
        self, problem: Problem, program: Program, fetch: tuple[str, ...], turn: int, asserts: bool
    ) -> ProgramRun:
        """Run it, after a build of its own where one is needed: of many calls at once for one program, one compiles."""
        language = find_language(program.language)
        compile_s = 0.0
        if not language.warm:
            written = await self._with_link(lambda link: link.write(single_run.BUILD))
            build = _Job(single_run.BUILD, program, language, written, turn, True, task="build")
            built, shared = await self._builds.get(
                program_key(program, language), problem.limits, lambda: self._judge(build)
            )
            compile_s = 0.0 if shared else built.run_s
            if built.verdict is not Verdict.AC:
                return dataclasses.replace(single_run.not_run(built), compile_s=compile_s)
        written = await self._with_link(lambda link: link.write(problem))
        job = _Job(problem, program, language, written, turn, True, task="run", fetch=fetch, asserts=asserts)
        done = await self._answer(job)
        if isinstance(done, Judgement):
            return single_run.not_run(done)
        return dataclasses.replace(done, compile_s=compile_s)

    async def _judge_once(self, problem: Problem, program: Program, turn: int, stop: bool) -> tuple[Judgement, bool]:
        language = find_language(program.language)
        job = _Job(problem, program, language, await self._with_link(lambda link: link.write(problem)), turn, stop)
        if self._once is None:
            return await self._judge(job), False
        key = program_key(program, language, job.written.digest, stop)
        return await self._once.get(key, problem.limits, lambda: self._judge(job))

    async def _judge(self, job: _Job) -> Judgement:
        return _judgement(await self._answer(job))

    def _check_memory(self, limit_bytes: int) -> None:
        """Warn of a limit, larger than those before, that the programs of all workers cannot have at once."""
        if limit_bytes > self._limit_bytes:
            self._limit_bytes = limit_bytes
            if told := too_much_memory(self.workers, limit_bytes, memory_bytes()):
                warnings.warn(f"sandbox: {told}", RuntimeWarning, stacklevel=2)

    async def _answer(self, job: _Job) -> Answer:
        """Judge or run now, as a whole or by cases. Of a program that took down its judges, a Judgement."""
        self._check_memory(job.problem.limits.memory_bytes)
        async with self._connect().places.place(job.turn):
            ticket = Ticket(self._counts)
            self._wanted += 1
            width = 1
            try:
                width = await self._width(job)
                self._wanted += width - 1
                done = await (self._ask_apart(job, ticket, width) if width > 1 else self._ask_whole(job, ticket))
            except TookDown as error:
                return await self._blame(job, ticket, error)
            finally:
                self._wanted -= width
        if job.task == "judge":
            self._history.record(job.written.digest, job.language.name, _judgement(done))
        return done

    async def _blame(self, job: _Job, ticket: Ticket, error: TookDown) -> Answer:
        """Handle the death of every judge under a program.

        Raises `error` where the control program fails too; otherwise tries again, as often or until one hangs again,
        because the deaths may be chance.
        """
        problem, program = control.sample(job.language)
        written = await self._with_link(lambda link: link.write(problem))
        try:
            done = _judgement(
                await self._ask_whole(_Job(problem, program, job.language, written, job.turn, job.stop), ticket)
            )
        except WorkerDied:
            raise error from None
        try:
            again = dataclasses.replace(job, hangs_max=1) if isinstance(error, HeldUp) else job
            return await self._ask_whole(again, ticket)
        except TookDown as last:
            return control.take_down(job.problem, done, last)

    async def _width(self, job: _Job) -> int:
        """Return the number of workers for a program: more than one when its cases are slow and no other job needs
        them.
        """
        if job.task != "judge":
            return 1
        case_s = self._history.case_s(job.written.digest, job.language.name)
        if split.lanes(job.problem, job.written.size, case_s, self.workers) == 1:
            return 1
        await asyncio.sleep(0)  # jobs of the same moment come first
        return split.lanes(job.problem, job.written.size, case_s, self.workers - self._wanted + 1)

    async def _ask_whole(self, job: _Job, ticket: Ticket) -> Answer:
        expected_s = self._history.expected_s(job.written.digest, job.language.name, job.problem)
        return await self._ask(job, ticket, expected_s)

    async def _ask_apart(self, job: _Job, ticket: Ticket, width: int) -> Judgement:
        self._counts.split += 1
        case_s = self._history.case_s(job.written.digest, job.language.name) or 0.0

        async def ask_case(index: int) -> Judgement:
            return _judgement(await self._ask(job, ticket, case_s, index))

        done = await split.judge_apart(
            ask_case,
            len(job.problem.cases),
            width,
            stop=job.stop,
            first_alone=not job.language.warm,
        )
        return dataclasses.replace(done, run_s=time.monotonic() - ticket.started_s)

    async def _ask(self, job: _Job, ticket: Ticket, expected_s: float, only: int | None = None) -> Answer:
        """Have it done, as a whole or one case only."""
        body = job.body(only)
        head = {
            "deadline_s": longest_s(job.problem),
            "expected_s": expected_s,
            "turn": job.turn,
            "problem": job.written.digest,
        }

        async def ask(link: Link) -> Answer:
            async with link.hold(job.problem):
                return await link.ask(head, body, ticket)

        return await self._with_link(ask, job.hangs_max)

    async def _with_link(self, use: Callable[[Link], Awaitable[T]], hangs_max: int = HANGS_MAX) -> T:
        """Do it, and again with another worker or supervisor when one dies, as often as `errors.Deaths` says."""
        deaths = Deaths(hangs_max)
        while True:
            try:
                return await use(self._connect())
            except TryFailed as error:
                self._counts.failures += error.blamed
                if self._closed:
                    raise PoolClosed("the pool was closed while this job waited") from None
                if error.blamed and (last := deaths.add(error.cause, handed=error.handed)) is not None:
                    raise last from None

    def _connect(self) -> Link:
        """Return the link to the supervisor in the running loop; starts one if needed."""
        if self._closed:
            raise PoolClosed("the pool is closed")
        loop = asyncio.get_running_loop()
        link = self._link
        if link is not None and link.loop is not loop:
            if not link.loop.is_closed():
                raise SandboxError("the pool is in use in another event loop; make one pool per loop")
            link.kill()
            link = None
        if link is None or link.dead:
            places = link.places if link else Slots(min(self.queue_limit, held_most(self.workers)))
            arguments = [str(self.workers), self.isolation, self._packages, str(self.nice)]
            link = self._link = Link(arguments, self._counts, loop, places, self._directory)
        return link

    def stats(self) -> PoolStats:
        """Counts so far; takes well under a millisecond."""
        return self._counts.stats()

    def pids(self) -> tuple[int, ...]:
        """Pid of the supervisor while it runs; all other processes descend from it and die with it."""
        return (self._link.process.pid,) if self._link is not None and not self._link.dead else ()

    async def close(self) -> None:
        """End all processes and remove all files; waiting judge() calls raise PoolClosed. At most 5 s, then SIGKILL."""
        self._closed = True
        link, self._link = self._link, None
        if link is not None:
            await link.close()


@dataclass(frozen=True, slots=True)
class _Job:
    problem: Problem
    program: Program
    language: Language
    written: Written
    turn: int
    stop: bool
    """Stop at the first case that fails."""
    hangs_max: int = HANGS_MAX
    """Workers that may hang under it."""
    task: Literal["judge", "build", "run"] = "judge"
    """build: compile, and run no case."""
    fetch: tuple[str, ...] = ()
    """run: names of files to bring back."""
    asserts: bool = False
    """run: with Java's `assert` statements."""

    def body(self, only: int | None) -> bytes:
        """The body of a job, without the problem, which is sent separately."""
        what = {"program": dataclasses.asdict(self.program), "task": self.task, "fetch": self.fetch}
        return json.dumps({**what, "asserts": self.asserts, "stop": self.stop, "only": only}).encode()


def program_key(program: Program, language: Language, *more: object) -> str:
    """Equal for equal programs."""
    parts = (program.source, program.files, program.entry, repr(language), *more)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _judgement(done: Answer) -> Judgement:
    assert isinstance(done, Judgement)
    return done
