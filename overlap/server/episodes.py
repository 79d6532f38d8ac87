"""Rollouts of many turns behind the engine's door: a request becomes an episode, and comes back as one trajectory.

    request ──▶ place ──▶ the task's rollout ⇄ Chat ⇄ engine
                                   │
                                   ▼
                 branches of the tree ──▶ Trajectory with its forks

consumes: requests                       produces: trajectories
waits for: a place, the rollout          woken by: its end, or that of its time

How it may end: by itself; by a budget, which truncates it; by an error of the task, which ends the run and says where;
by a fault of ours, after which it is rolled out again.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from time import monotonic
from types import TracebackType
from typing import Any, Protocol, cast

from overlap.config import Config
from overlap.core import Generator, Prompt, Request, Trajectory
from overlap.errors import EpisodeError, OverlapError, RequestRefused, RolloutError
from overlap.server import bounded
from overlap.server.bounded import GoesOn, OutOfTime, within
from overlap.server.chat import Budget, Chat
from overlap.server.episode_tree import Branch
from overlap.server.slots import Place
from overlap.server.template import ChatTemplate
from sandbox.core import Judgement, Limits, Problem, Program
from sandbox.errors import SandboxError
from sandbox.pool import Slots
from sandbox.session import Finished, Output, ProgramSession, Sessions

TRIES = 2
"""An episode that met a fault of ours is rolled out so many times in all."""
IDLE_S = 5.0
"""An episode keeps its place in the engine for so long between two turns."""
STATES = 64
"""So many episodes at once may hold a program's state; others wait until one of these has ended, or rested."""
_FRAMES = 8
_OURS = (__file__, bounded.__file__)
_GIVES = "it must give the answer, text (of a Reply, its text)"


class Rollout(Protocol):
    """What rolls an episode out: ``Task.rollout``, bound to its task. Returns the answer that is judged."""

    def __call__(self, prompt: Prompt, chat: Chat, sandbox: EpisodeSandbox) -> Awaitable[Any]: ...


class HarnessCrashed(Exception):
    """An agent program ended in disorder: its episode has no reward."""


Judges = Callable[[Problem, Program, int], Awaitable[Judgement]]


@dataclass(frozen=True, slots=True)
class EpisodeSandbox:
    """The pool of sandboxes, as an episode sees it, and a Python program of its own."""

    _judge: Judges
    _group: int
    _session: ProgramSession

    async def run(self, problem: Problem, program: Program) -> Judgement:
        """Judge a program, in the pool that judges answers, by the cases of ``problem``: by those that the policy may
        know of. A fault of the sandbox's own has the episode rolled out again.
        """
        return await self._judge(problem, program, self._group)

    async def execute(self, code: str, *, timeout_s: float | None = None) -> Output:
        """Run Python code that the policy wrote, in the state that the episode's calls before it have left: variables,
        imports, and files of its directory. What it did is in the Output, its end and the loss of the state included.

        Each call is under the CPU time of ``verify.cpu_s`` and the wall time of a test, or ``timeout_s`` where that is
        less. The code may say of itself what it likes: no reward is to be made of it. A fault of the sandbox's own has
        the episode rolled out again.
        """
        return await self._session.execute(code, timeout_s=timeout_s)

    async def run_files(self, files: Mapping[str, str], **how: Any) -> Finished:
        """Run files that the policy wrote, once, in a fresh directory that nothing else is in; under the same limits.
        ``how``: ``language``, ``entry``, ``arguments`` and ``stdin``, as ``Session.run_files`` has them.
        """
        return await self._session.run_files(files, **how)


class Episodes:
    """The engine's door, whose ``generate`` rolls out an episode; all else is the engine's.

    ``judge`` is the verifier's pool. ``name`` is what errors call the rollout. ``gateway``, where agent programs roll
    out, lives as long as this does. ``packages`` can be imported by what an episode executes.
    """

    def __init__(
        self,
        cfg: Config,
        engine: Generator,
        template: ChatTemplate,
        rollout: Rollout,
        name: str,
        judge: Judges,
        gateway: AbstractAsyncContextManager[Any] | None = None,
        packages: tuple[str, ...] = (),
    ) -> None:
        self._cfg, self._engine, self._template = cfg, engine, template
        self._rollout, self._name, self._judge = rollout, name, judge
        self._places = Slots(cfg.rollout.sequences)
        self._gateway, self._opened = gateway, AsyncExitStack()
        self._sessions = Sessions(
            min(cfg.rollout.sequences, STATES),
            at_once=cfg.verify.workers,
            isolation=cfg.verify.isolation,
            limits=Limits(cpu_s=cfg.verify.cpu_s),
            packages=packages,
        )

    async def start(self) -> None:
        """Have the gateway listen, where there is one, and bring the engine up."""
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            await self._opened.enter_async_context(gateway)
        await self._engine.start()

    async def close(self) -> None:
        """The gateway first: nobody asks any more."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._engine.close)
            stack.push_async_callback(self._sessions.close)
            await self._opened.aclose()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: Request) -> Trajectory:
        """Roll an episode out. Raises RolloutError with the prompt and the traceback where the task's code fails."""
        failure = ""
        for _ in range(TRIES):
            try:
                return await self._episode(request)
            except SandboxError as error:  # the engine's are met behind its own door
                failure = f"{type(error).__name__}: {error}"
            except HarnessCrashed as error:
                failure = str(error)
                break
        at = monotonic()
        return Trajectory(request, (), (), "", "abort", (), at, at, failure=failure)

    async def _episode(self, request: Request) -> Trajectory:
        cfg, episode = self._cfg, self._cfg.episode
        place = Place(self._places, request.place, IDLE_S)
        budget = Budget(episode.turns, cfg.behind_prompt, cfg.context_tokens)
        chat = Chat(request, self._engine, self._template, budget, place.turn, reads=episode.reads)
        try:
            async with place.turn():  # nothing of it begins before there is room
                started = monotonic()
            answer = await self._answer(request, chat)
        finally:
            await chat.close()
            await place.close()
        return _trajectory(request, chat, answer, started)

    async def _answer(self, request: Request, chat: Chat) -> str | None:
        """What the rollout gives; None where a budget ended it."""
        session, seconds = self._sessions.open(), self._cfg.episode.timeout_s
        sandbox = EpisodeSandbox(self._judge, request.group, session)
        try:
            rollout = self._rollout(request.prompt, chat, sandbox)
            answer = await within(seconds, rollout, lambda: chat.end(f"its {seconds:g} s are up (episode.timeout_s)"))
        except OutOfTime:
            return None
        except GoesOn as error:
            way_out = "let asyncio.CancelledError pass, which a bare except does not"
            raise RolloutError(f"{self._name}: {error}, for prompt {request.prompt.id!r}; {way_out}") from error
        except RequestRefused as error:  # no budget: it would ask so of any policy
            raise self._fault(request, error) from error
        except EpisodeError:
            return None
        except (OverlapError, SandboxError, HarnessCrashed):
            raise
        except Exception as error:  # the user's code can raise anything
            raise self._fault(request, error) from error
        finally:
            await session.close()
        if not isinstance(answer, str):
            raise RolloutError(f"{self._name} gave {_kind(answer)} for prompt {request.prompt.id!r}; {_GIVES}")
        return None if chat.over else answer

    def _fault(self, request: Request, error: BaseException) -> RolloutError:
        where = "".join(traceback.format_exception(type(error), error, _theirs(error), limit=-_FRAMES)).rstrip()
        what = f"{type(error).__name__}: {error}"
        return RolloutError(f"{self._name} raised {what}, for prompt {request.prompt.id!r}\n{where}")


def _theirs(error: BaseException) -> TracebackType | None:
    """The traceback from where the task's code begins; all of it where that is not on it."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename in _OURS:
        found = found.tb_next
    return found or error.__traceback__


def _kind(answer: Any) -> str:
    return "nothing" if answer is None else type(answer).__name__


def episodes(cfg: Config, engine: Generator, template: ChatTemplate, *more: Any, **options: Any) -> Generator:
    """An engine whose rollouts are episodes: see ``Episodes``."""
    return cast(Generator, Episodes(cfg, engine, template, *more, **options))


def _trajectory(request: Request, chat: Chat, answer: str | None, started: float) -> Trajectory:
    """Its answer's branch with the others as forks. One that a budget ended is truncated, and what the policy said last
    is its answer.
    """
    ended, branches = monotonic(), chat.branches()
    last = chat.last
    text = answer if answer is not None else last.dialog[-1].text if last is not None else ""
    empty = Trajectory(request, (), (), text, "stop" if answer is not None else "length", (), started, ended, turns=0)
    if not branches:
        return replace(empty, used=chat.used)

    def made(branch: Branch) -> Trajectory:
        whole = replace(empty, prompt_ids=branch.prompt_ids, token_ids=branch.token_ids, logprobs=branch.logprobs)
        mask = b"" if all(branch.mask) else branch.mask
        return replace(whole, mask=mask, spans=branch.spans, finish=branch.finish, turns=len(branch.turns))

    first, *others = map(made, branches)
    finish = "length" if answer is None else first.finish
    forks = tuple(replace(other, text="") for other in others)
    return replace(first, finish=finish, forks=forks, used=chat.used)
