"""Rollouts of many turns behind the interface of an engine: a request becomes an episode, and returns as one
trajectory.

    request ──▶ slot ──▶ the task's rollout ⇄ Chat ⇄ engine
                                   │
                                   ▼
                 branches of the tree ──▶ Trajectory with its forks

consumes: requests                       produces: trajectories
waits for: a slot, the rollout           woken by: its end, or that of its time, in which the engine is awake

An episode ends by itself; by a budget, which truncates it; by an error of the task, which ends the run and names the
place; or by a fault of ours, after which it is rolled out once more. One without a single turn has failed: there is
nothing to learn from.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from overlap.config.fields import Config
from overlap.core import Finish, Generator, Part, Prompt, Request, Trajectory, Used, shortened
from overlap.core.clock import PausableClock
from overlap.core.errors import EpisodeError, OverlapError, RequestRefused, RolloutError
from overlap.server import bounded
from overlap.server.bounded import EpisodeSlot, IgnoredCancel, within
from overlap.server.chat import Budget, Chat
from overlap.server.template import ChatTemplate
from overlap.server.turn_request import RequestRules
from sandbox.core.nouns import Judgement, Limits, Program
from sandbox.core.problem import Problem
from sandbox.errors import SandboxError
from sandbox.pool.slots import Slots
from sandbox.session.output import Finished, Output
from sandbox.session.sessions import ProgramSession, Sessions
from sandbox.session.workspace import Workspace

if TYPE_CHECKING:
    from overlap.server.gateway import Gateway

TRIES = 2
"""Number of rollouts of an episode that meets faults of ours."""
IDLE_S = 5.0
"""Seconds for which an episode keeps its slot in the engine between two turns."""
STATES = 64
"""Number of episodes that may hold a program's state at a time; others wait until one of them ends or pauses."""
_FRAMES = 8
_OURS = (__file__, bounded.__file__)
_NOTES = {
    "turn_marks": "a text holds what the policy's chat template marks turns by, plain text, and reads as a turn; such "
    "texts are counted (episode/ignored_turn_marks)",
    "unread": "an answer holds what looks like a tool call, and episode.tool_parser={parser!r} reads none in it; such "
    "answers stay text and are counted (episode/unread)",
}
_GIVES = "it must give the answer, text (of a Reply, its text)"


class HarnessCrashed(Exception):
    """An agent program ended with an error: its episode has no reward."""


Rollout = Callable[[Prompt, Chat, "EpisodeSandbox"], Awaitable[Any]]
"""Rolls an episode out, as ``Task.rollout`` does. Returns the answer that is judged."""
Judges = Callable[[Problem, Program, int], Awaitable[Judgement]]
Endpoint = Callable[[], AbstractContextManager[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class EpisodeSandbox:
    """Access of an episode to the pool of sandboxes, and to a Python session of its own."""

    _judge: Judges
    _group: int
    _session: ProgramSession
    _endpoint: Endpoint | None = None

    @contextmanager
    def endpoint(self) -> Iterator[tuple[str, str]]:
        """An OpenAI-compatible endpoint of this episode, for a task with ``endpoint = True``: base URL and key. What is
        said there is said by ``chat``. When this ends, the key opens nothing.
        """
        if self._endpoint is None:
            raise RolloutError("this task has no endpoint: set endpoint = True in its class")
        with self._endpoint() as found:
            yield found

    async def run(self, problem: Problem, program: Program) -> Judgement:
        """Judge a program by the cases of ``problem``, in the pool that judges answers: use only cases that the policy
        may know. After a fault of the sandbox the episode is rolled out again.
        """
        return await self._judge(problem, program, self._group)

    async def execute(self, code: str, *, timeout_s: float | None = None) -> Output:
        """Run Python code that the policy wrote, in the state that earlier calls of the episode left: variables,
        imports, and files of its directory. The Output holds what it printed, how it ended, and whether the state was
        lost.

        Each call is limited to ``verify.cpu_s`` of CPU time and to the wall time of a test, or ``timeout_s`` if less.
        The code controls its own output: never compute a reward from it. After a fault of the sandbox the episode is
        rolled out again.
        """
        return await self._session.execute(code, timeout_s=timeout_s)

    async def run_files(self, files: Mapping[str, str], **how: Any) -> Finished:
        """Run files that the policy wrote, once, in a fresh and otherwise empty directory, under the same limits.
        ``how``: ``language``, ``entry``, ``arguments`` and ``stdin``, as ``Session.run_files`` has them.
        """
        return await self._session.run_files(files, **how)

    def workspace(self, **how: Any) -> Workspace:
        """The episode's working directory for the commands of a shell, which stays between its calls: ``exec``,
        ``read`` and ``write`` use it. With the first call, ``root`` names a directory whose content commands see in the
        place of the machine's tools, and ``readable`` further paths, both read-only; ``links``, ``work_bytes`` and
        ``limits`` are as ``sandbox.session.workspace.Workspace`` has them. Raises ValueError where it is there. After
        its ``close``, the next call makes a new one.
        """
        return self._session.workspace(**how)

    async def exec(self, command: str, *, stdin: str = "", timeout_s: float | None = None) -> Finished:
        """Run a shell's command that the policy wrote, jailed and without a network, under the same limits. Files stay
        for the next call; processes and variables do not.
        """
        return await self.workspace().exec(command, stdin=stdin, timeout_s=timeout_s)

    async def read(self, path: str) -> bytes:
        """The content of a file of the workspace. Raises OSError, such as FileNotFoundError: catch it where the policy
        chooses the path.
        """
        return await self.workspace().read(path)

    async def write(self, path: str, content: str | bytes) -> None:
        """Make a file in the workspace, or replace its content. Raises OSError."""
        await self.workspace().write(path, content)


class Episodes:
    """A generator whose ``generate`` rolls out an episode; everything else is passed to the engine.

    ``judge`` judges in the verifier's pool. ``name`` is what errors call the rollout. ``gateway``, for agent programs,
    is opened by ``start`` and closed by ``close``, as are ``resources``. Code that an episode executes can import
    ``packages``. ``tell`` prints a line for the user.
    """

    def __init__(
        self,
        cfg: Config,
        engine: Generator,
        template: ChatTemplate,
        rollout: Rollout,
        name: str,
        judge: Judges,
        gateway: Gateway | None = None,
        packages: tuple[str, ...] = (),
        resources: AbstractAsyncContextManager[Any] | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._cfg, self._engine, self._template = cfg, engine, template
        self._rollout, self._name, self._judge = rollout, name, judge
        self._places, self._clock = Slots(cfg.rollout.sequences), PausableClock()
        self._gateway, self._resources, self._opened = gateway, resources, AsyncExitStack()
        self._tell, self._noted = tell, set[str]()
        self._sessions = Sessions(
            min(cfg.rollout.sequences, STATES),
            at_once=cfg.verify.workers,
            isolation=cfg.verify.isolation,
            limits=Limits(cpu_s=cfg.verify.cpu_s),
            packages=packages,
        )

    async def start(self) -> None:
        """Open the gateway and the task's resources, where there are such, and start the engine."""
        for opened in (self._gateway, self._resources):
            if opened is not None:
                await self._opened.enter_async_context(opened)
        self._resources = None
        await self._engine.start()

    async def close(self) -> None:
        """Close the gateway first, so that no more turns are asked for, then the sessions and the engine."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._engine.close)
            stack.push_async_callback(self._sessions.close)
            await self._opened.aclose()

    async def sleep(self) -> None:
        """Put the engine to sleep; turns wait, and the clock of the episodes is paused, until its cache wakes."""
        await self._engine.sleep()
        self._clock.pause()

    async def wake(self, part: Part) -> None:
        await self._engine.wake(part)
        if part == "cache":
            self._clock.resume()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: Request) -> Trajectory:
        """Roll an episode out; where no more than ``max_tokens`` of a response are asked for, the engine answers the
        prompt. Raises RolloutError with the prompt and the traceback where the task's code fails.
        """
        if request.max_tokens is not None and request.prompt.token_ids:
            return await self._engine.generate(request)
        failure = ""
        for _ in range(TRIES):
            try:
                return await self._episode(request)
            except SandboxError as error:  # the engine's are met behind its own door
                failure = f"{type(error).__name__}: {error}"
        return _failed(request, failure, None, monotonic())

    async def _episode(self, request: Request) -> Trajectory:
        cfg, episode = self._cfg, self._cfg.episode
        slot = EpisodeSlot(self._places, request.place, IDLE_S)
        budget = Budget(episode.turns, cfg.behind_prompt, cfg.context_tokens)
        rules = RequestRules(bool(episode.tool_parser), cfg.model.chat_template_kwargs)
        chat = Chat(
            request, self._engine, self._template, budget, slot.turn, reads=episode.reads, rules=rules, note=self._note
        )
        try:
            async with slot.turn():  # nothing of the episode begins before there is room
                started = monotonic()
            answer = await self._answer(request, chat)
        except HarnessCrashed as error:
            refusal = f"; the first of its requests that was refused: {chat.refusal}" if chat.refusal else ""
            return _failed(request, f"{error}{refusal}", chat.used, started)
        finally:
            await chat.close()
            await slot.close()
        if not chat.episode.delivered and (answer is not None or not chat.asked):
            over = chat.over if answer is None else ""
            why = chat.refusal or over or ("no answer reached it" if chat.asked else "it asked for none")
            return _failed(request, f"{self._name} had no turn: {why}", chat.used, started, answer or "")
        return _trajectory(request, chat, answer, started)

    async def _answer(self, request: Request, chat: Chat) -> str | None:
        """Returns the answer of the rollout; None where a budget ended it."""
        session, seconds = self._sessions.open(), self._cfg.episode.timeout_s
        endpoint = partial(self._gateway.endpoint, chat) if self._gateway is not None else None
        sandbox = EpisodeSandbox(self._judge, request.group, session, endpoint)
        try:
            rollout = self._rollout(request.prompt, chat, sandbox)
            answer = await within(seconds, rollout, lambda: chat.end_by_time(seconds), self._clock)
        except Exception as error:  # the user's code can raise anything
            if self._truncates(error, chat):
                return None
            ours = isinstance(error, OverlapError | SandboxError | HarnessCrashed)
            if ours and not isinstance(error, IgnoredCancel | RequestRefused):
                raise
            raise self._fault(request, error) from error
        finally:
            await session.close()
        if not isinstance(answer, str):
            kind = "nothing" if answer is None else type(answer).__name__
            raise RolloutError(f"{self._name} gave {kind} for prompt {request.prompt.id!r}; {_GIVES}")
        return None if chat.over else answer

    def _truncates(self, error: Exception, chat: Chat) -> bool:
        """Return whether a budget ended the rollout. A refused request is none: it would be asked of any policy."""
        if isinstance(error, OverlapError | SandboxError):
            return isinstance(error, EpisodeError) and not isinstance(error, RequestRefused)
        # What a client of the gateway met, however that says so.
        return chat.spent and self._gateway is not None and self._gateway.fault is None

    def _note(self, kind: str, text: str) -> None:
        """Print a remark for the user, each kind once in a run, with the text that showed it."""
        if kind not in self._noted:
            self._noted.add(kind)
            self._tell(f"{_NOTES[kind].format(parser=self._cfg.episode.tool_parser)}: {shortened(text)}")

    def _fault(self, request: Request, error: BaseException) -> RolloutError:
        what = f"{self._name} raised {type(error).__name__}: {error}, for prompt {request.prompt.id!r}"
        if isinstance(error, IgnoredCancel):  # nothing of the task is in its traceback
            return RolloutError(what)
        where = "".join(traceback.format_exception(type(error), error, _theirs(error), limit=-_FRAMES)).rstrip()
        return RolloutError(f"{what}\n{where}")


def _theirs(error: BaseException) -> TracebackType | None:
    """The traceback from where the task's code begins; the whole where none of it is the task's."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename in _OURS:
        found = found.tb_next
    return found or error.__traceback__


def episodes(cfg: Config, engine: Generator, template: ChatTemplate, *more: Any, **options: Any) -> Generator:
    """Wrap an engine so that its rollouts are episodes: see ``Episodes``."""
    return cast(Generator, Episodes(cfg, engine, template, *more, **options))


def _failed(request: Request, failure: str, used: Used | None, started: float, text: str = "") -> Trajectory:
    return Trajectory(request, (), (), text, "abort", (), started, monotonic(), failure=failure, used=used, turns=0)


def _trajectory(request: Request, chat: Chat, answer: str | None, started: float) -> Trajectory:
    """The trajectory of the branch that holds the answer, with the other branches as forks. An episode that a budget
    ended is truncated, and its answer is what the policy said last.
    """
    last, ended = chat.last, monotonic()
    # The verifier puts the prefill in front; a turn's text has its own already.
    said = last.dialog[-1].text.removeprefix(request.prompt.prefill) if last is not None else ""
    text = answer if answer is not None else said
    finish: Finish = "length" if answer is None else "stop"
    if last is None:
        return Trajectory(request, (), (), text, finish, (), started, ended, used=chat.used, turns=0)
    first, *forks = chat.branches(started, ended)
    finish = "length" if answer is None or chat.full else first.finish
    return replace(first, text=text, finish=finish, forks=tuple(forks), used=chat.used)
