"""Tasks to learn: a base class for tasks, prompts by the model's chat template, and loading a task by its name.

A task needs two methods. This one teaches brevity; its reward needs no sandbox, so it runs in a worker process::

    class Brief(Task):
        def prompts(self, tokenizer, split):
            return [chat_prompt(tokenizer, "sky", "Why is the sky blue?")] if split == "train" else []

        def reward(self, prompt, answer, judgement):
            return 1.0 if len(answer) < 80 else 0.0
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from overlap import core
from overlap.config.hints import section_from
from overlap.config.import_path import import_named
from overlap.config.rules import given_fields
from overlap.core import LeftOut, Probe, Prompt, described_error, line_of, shortened
from overlap.core.errors import ConfigError, OverlapError, near_or_all, raise_all, refusing
from overlap.core.turn_marks import TurnMarks
from overlap.core.user_code import misfit

if TYPE_CHECKING:
    from overlap.config.fields import Config
    from sandbox.core.nouns import Judgement, Program
    from sandbox.core.problem import Problem


class Task(ABC):
    """Base class of tasks, and what each member owes. Any class with these members is a task.

    A class method ``from_config(cfg)``, where there is one, makes the task when it is named in ``data.task``.
    """

    packages: tuple[str, ...] = ()
    """Installed packages that its Python programs may import beside the standard library; each makes runs slower."""

    own_limits: str = ""
    """Limits that the task's own tests bring, beside ``verify.cpu_s``, in words for the plan; "" for none."""

    all_cases: bool = False
    """True: the sandbox judges all cases of a problem, so that ``judgement.score`` is the share that passes; else it
    stops at the first failure, which is faster, and ``score`` raises ValueError for what is not known then."""

    options: ClassVar[type | None] = None
    """Dataclass of what ``data.options`` may set: its fields with types and defaults. ``from_config`` gets them by
    ``task_options(cfg, cls)``."""

    @abstractmethod
    def prompts(self, tokenizer: Any, split: str) -> Sequence[Prompt | LeftOut]:
        """Prompts of split "train" or "heldout" (may be empty), in a fixed order, with unique ids.

        A row of the data that gives no prompt is returned as a ``LeftOut``: it is counted and shown. Prompts may be of
        any length: prompts of more than ``model.prompt_tokens`` tokens are left out at the start of a run, and counted.
        """

    def program(self, prompt: Prompt, answer: str) -> tuple[Problem, Program] | None:
        """Return the sandbox's job for this answer; None if the reward needs no sandbox. Cheap and pure."""
        return None

    @abstractmethod
    def reward(self, prompt: Prompt, answer: str, judgement: Judgement | None) -> float | None:
        """Reward of an answer, a finite number; None masks the sample.

        Pure. With a judgement it is called on the driver's loop, so it must be cheap. Without one it runs in a worker
        process, where it may take as long as a program may.
        """

    reward_of_tokens: Any = None
    """Method for a reward by the sampled tokens: ``def reward_of_tokens(self, prompt, answer, token_ids)``, which is
    called in a worker process instead of ``reward``. ``token_ids`` are those of the response.
    """

    rollout: Any = None
    """Method for episodes of several turns: ``async def rollout(self, prompt, chat, sandbox) -> str``.

    ``await chat.say(messages, tools=, max_tokens=, stop=, prefill=)`` has the policy answer (a ``Reply``:
    text, reasoning, calls, finish, message), ``await sandbox.run(problem, program)`` judges a program in the pool that
    judges answers, by cases that the policy may know of; ``sandbox.execute(code)`` and ``sandbox.run_files(files)`` run
    what it wrote (an ``EpisodeSandbox``). What it returns is the answer that ``program`` and ``reward``
    get. All that the policy sampled is trained, also on branches that were left. It ends truncated where ``chat.say``
    raises that a budget is used up (``episode.turns``, ``episode.timeout_s``, ``episode.tokens``).
    """

    endpoint: bool = False
    """True: episodes of its ``rollout`` can be reached by HTTP too: ``with sandbox.endpoint() as (url, key)``."""

    resources: Any = None
    """Method for rollouts that need something for a whole run, such as a process: it takes no arguments and returns
    an async context manager, entered before the first episode and left after the last one."""

    def files(self, prompt: Prompt, text: str) -> Mapping[str, str]:
        """Files that an agent program (``episode.command``) finds in its working directory, by relative path. ``text``
        is the prompt as the policy would read it.
        """
        return {"prompt.txt": text}

    def answer(self, prompt: Prompt, folder: Path, said: str) -> str:
        """The answer that ``program`` and ``reward`` get of an agent program that has ended: by default what the policy
        ``said`` last. ``folder`` is its working directory, as it left it, but for what is no file or folder of it
        (pipes, links that lead out) and files beyond 256 MiB; what they hold can be anything. Runs in a thread.
        """
        return said

    def probes(self, prompt: Prompt) -> Iterable[Probe]:
        """Programs whose verdict the data says or implies, for ``overlap check-data`` to judge; a reference is first.

        Lazy: a start of a run asks for the first one only.
        """
        return ()


def chat_prompt(
    tokenizer: Any,
    id: str,
    user: str,
    *,
    system: str | None = None,
    prefill: str = "",
    data: Any = None,
    place: str = "",
) -> Prompt:
    """A prompt in the model's own chat format, up to the start of the assistant's turn, then ``prefill``.

    A tokenizer without a chat template gets the texts with blank lines between. Raises ConfigError for a template that
    refuses the messages.
    """
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": user})
    ids = rendered_chat(tokenizer, messages)[1]
    # On its own, so that the prompt's tokens do not depend on how it is continued.
    ids = [*ids, *tokenizer(prefill, add_special_tokens=False)["input_ids"]] if prefill else ids
    return Prompt(id, tuple(map(int, ids)), prefill, data, place)


def rendered_chat(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> tuple[str, Sequence[int]]:
    """Messages as the policy reads them, up to the start of the assistant's turn: as text, and as token ids. A mark of
    a turn in the text of a message is text.

    A tokenizer without a chat template gets the texts with blank lines between. Raises ConfigError for a template that
    refuses the messages.
    """
    marks = _marks_of(tokenizer, str(getattr(tokenizer, "chat_template", None)))
    messages = marks.hidden(list(messages))

    def encode(part: str) -> Sequence[int]:
        found: Sequence[int] = tokenizer(part, add_special_tokens=False)["input_ids"]
        return found

    if getattr(tokenizer, "chat_template", None):
        text = _in_chat_form(tokenizer, messages)
        return marks.shown(text), marks.ids(text, encode)  # the template holds its special tokens
    text = "".join(f"{message['content']}\n\n" for message in messages)
    if (shown := marks.shown(text)) == text:
        return text, tokenizer(text)["input_ids"]
    return shown, [*tokenizer("")["input_ids"], *marks.ids(text, encode)]


@lru_cache(maxsize=1)
def _marks_of(tokenizer: Any, template: str) -> TurnMarks:
    """Return a tokenizer's marks; the last tokenizer's marks are kept: a task makes all its prompts with one."""
    return TurnMarks(tokenizer)


def messages_prompt(tokenizer: Any, id: str, messages: Sequence[Mapping[str, str]], *, data: Any = None) -> Prompt:
    """A prompt of several messages, as ``chat_prompt`` makes one of two. Raises ConfigError likewise."""
    return Prompt(id, tuple(map(int, rendered_chat(tokenizer, messages)[1])), "", data)


def _in_chat_form(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> str:
    name, roles = getattr(tokenizer, "name_or_path", ""), " and ".join(message["role"] for message in messages)
    fault, way_out = f"its chat template takes no {roles} message", "change the template, or give another policy"
    with refusing("model.policy", name, fault, way_out, (Exception,)):  # it is a program of the checkpoint
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))


def load_task(path: str, cfg: Config | None = None) -> core.Task:
    """The task named by "module:Class", made by ``Class.from_config(cfg)`` or else ``Class()``.

    Modules are also looked for in the working directory. Raises ConfigError for ``data.task``.
    """
    found = import_named("data.task", path, kind="class", example="recipes.code_rl.task:CodeTask")
    attribute = path.partition(":")[2]
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise _bad(path, f"cannot be made: its method {missing[0]} is abstract; define it")
    if isinstance(found, type) and hasattr(found, "from_config"):
        with user_code(f"{attribute}.from_config"):
            task = found.from_config(cfg)
    else:
        given = inspect.signature(found).parameters.values()
        if needs := [p.name for p in given if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]:
            raise _bad(path, f"cannot be made without its argument {needs[0]}; give it from_config(cfg)")
        with user_code(f"{attribute}()"):
            task = found()
    return check_task(task, path, cfg)


def task_options(cfg: Config, task: Any) -> Any:
    """``data.options`` as the task's ``options`` class, None where it has none. ``task`` is the task or its class.
    Raises ConfigError for an option that the task does not know, or that has a wrong value.
    """
    kind = getattr(task, "options", None)
    known = [field.name for field in fields(kind)] if kind is not None else []
    for name, value in cfg.data.options.items():
        if name not in known:
            called = getattr(task, "__qualname__", type(task).__qualname__)
            has = near_or_all(name, known, "it has {}") if known else "it has none"
            has += "; it belongs to --reward module:function" if name in ("reward", "style") else ""
            raise ConfigError(f"data.options.{name}", value, f"is no option of {called}; {has}")
    return kind if kind is None else section_from(kind, cfg.data.options, "data.options")


def check_task(task: Any, name: str, cfg: Config | None = None) -> core.Task:
    """The task, when it is one and knows the options of ``cfg``; ConfigError for anything else, with all of its methods
    that cannot be called as they will be. ``name`` is what the message calls it.
    """
    if isinstance(task, type):
        raise _bad(name, f"is a class: give an object of it, {task.__name__}(), or name it in data.task")
    if missing := [part for part in ("prompts", "program", "reward", "probes", "packages") if not hasattr(task, part)]:
        raise _bad(name, f"has no {missing[0]}; derive it from overlap.Task")
    packages = task.packages
    if isinstance(packages, str) or not all(isinstance(package, str) for package in packages):
        raise _bad(f"{type(task).__qualname__}.packages", f"is {packages!r}: write a tuple of names, ('numpy',)")
    _check_methods(task, "prompts", "program", "reward", "reward_of_tokens", "probes")
    if cfg is not None:
        task_options(cfg, task)
    return cast(core.Task, task)


def check_rollout(cfg: Config, task: core.Task) -> None:
    """Raise ConfigError where a task cannot roll out what ``cfg`` asks for, as far as can be seen before it begins."""
    command, rollout = cfg.episode.command, getattr(task, "rollout", None)
    kind = type(task).__qualname__
    if command and (missing := [name for name in ("files", "answer") if not hasattr(task, name)]):
        way_out = f"{kind} has no {missing[0]} for it; derive the task from overlap.Task"
        raise ConfigError("episode.command", command, way_out)
    _check_methods(task, *(("files", "answer") if command else ("rollout",)))
    if not command and rollout is None:
        for name, value in given_fields(cfg.episode, "episode"):
            way_out = f"{kind} has no rollout of several turns, and there is no episode.command: leave it out"
            raise ConfigError(name, value, way_out)
        return
    if overlong := cfg.learn.overlong_tokens:
        way_out = f"rollouts are episodes ({command or f'{kind}.rollout'}), whose responses have one reward: use 0"
        raise ConfigError("learn.overlong_tokens", overlong, way_out)
    if cfg.episode.timeout_s >= cfg.run.stall_s:
        way_out = f"an episode is begun again after run.stall_s={cfg.run.stall_s:g}: use less, or make that more"
        raise ConfigError("episode.timeout_s", cfg.episode.timeout_s, way_out)


_CALLED_WITH = {
    "prompts": ("tokenizer", "split"),
    "program": ("prompt", "answer"),
    "reward": ("prompt", "answer", "judgement"),
    "reward_of_tokens": ("prompt", "answer", "token_ids"),
    "probes": ("prompt",),
    "files": ("prompt", "text"),
    "answer": ("prompt", "folder", "said"),
    "rollout": ("prompt", "chat", "sandbox"),
}
"""Method of a task → the arguments that it is called with."""


def _check_methods(task: Any, *methods: str) -> None:
    """Raise one ConfigError for all of a task's methods that cannot be called as they will be."""
    raise_all([error for method in methods if (error := _misfit(task, method)) is not None])


def _misfit(task: Any, method: str) -> ConfigError | None:
    """The error of a method that cannot be called as it will be, with its line; None where it can, or is not there."""
    found, names = getattr(task, method, None), _CALLED_WITH[method]
    if found is None:
        return None
    asynchronous = method == "rollout"
    wanted = f"write `{'async ' * asynchronous}def {method}({', '.join(('self', *names))})`"
    kind, where = f"{type(task).__qualname__}.{method}", line_of(found)
    place = f" ({where})" if where else ""
    if not callable(found):
        return ConfigError("data.task", kind, f"is no method, but {shortened(found)}: {wanted}")
    if why := misfit(found, names):
        return ConfigError("data.task", kind, f"cannot be called with {', '.join(names)}: {why}{place}; {wanted}")
    function = inspect.unwrap(found)
    is_async = any(map(inspect.iscoroutinefunction, (found, function, getattr(found, "__call__", None))))  # noqa: B004
    yields = inspect.isasyncgenfunction(function) or (
        method not in ("prompts", "probes") and inspect.isgeneratorfunction(function)
    )
    if yields or is_async != asynchronous:
        what = "yields" if yields else "is async" if is_async else "is not async"
        return ConfigError("data.task", kind, f"it {what}{place}: {wanted}")
    return None


@contextmanager
def user_code(name: str) -> Iterator[None]:
    """Raise what a method ``name`` of the task raises as a ConfigError with its line."""
    try:
        yield
    except Exception as error:  # the user's code can raise anything
        if isinstance(error, OverlapError):
            raise
        raise _bad(name, described_error(error)) from error


def _bad(path: str, way_out: str) -> ConfigError:
    return ConfigError("data.task", path, way_out)
