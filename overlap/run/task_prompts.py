"""Prompts and probes of a task, checked before anything starts: they are the user's code and data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, get_args

from overlap.core import LeftOut, Probe, Prompt, Split, Task, line_of, shortened
from overlap.core.errors import ConfigError
from overlap.pipeline.dataset_filter import PromptSplit, filter_prompts
from overlap.task import user_code

_WAY_OUT = "make each with overlap.chat_prompt(tokenizer, id, text), or overlap.core.Prompt(id, token_ids)"


def task_prompts(task: Task, tokenizer: Any, prompt_tokens: int) -> dict[str, PromptSplit]:
    """The prompts of a task by split, none longer than ``prompt_tokens``. Raises ConfigError, with the line of the
    method, for what is no prompt, for an id that two prompts of a split have, and for what the method raises.
    """
    found = {}
    for split in get_args(Split):
        with user_code(f"{type(task).__qualname__}.prompts"):
            entries = _listed(task, split, task.prompts(tokenizer, split))
        _check_ids(task, split, entries)
        found[split] = filter_prompts(entries, prompt_tokens)
    return found


def check_probes(task: Task, prompt: Prompt) -> None:
    """Raise ConfigError for what is no probe among those of a prompt."""
    with user_code(f"{type(task).__qualname__}.probes"):
        found = task.probes(prompt)
        if not isinstance(found, Iterable):
            raise _fault(
                task, "probes", f"returned {shortened(found)} for prompt {prompt.id!r}: return a list of Probe"
            )
        for probe in islice(found, 1):  # they are lazy, and those of a large problem take long
            if not isinstance(probe, Probe):
                raise _fault(task, "probes", f"gave {shortened(probe)} for prompt {prompt.id!r}, which is no Probe")


def _listed(task: Task, split: str, entries: object) -> Sequence[Prompt | LeftOut]:
    if isinstance(entries, str | bytes | dict) or not isinstance(entries, Iterable):
        what = f"returned {shortened(entries)} of type {type(entries).__name__} for split {split!r}"
        raise _fault(task, "prompts", f"{what}: return a list of prompts, an empty one for a split that has none")
    found: list[Any] = list(entries)
    for number, entry in enumerate(found):
        if not isinstance(entry, Prompt | LeftOut):
            what = (
                f"entry {number} of split {split!r} is no Prompt, but {shortened(entry)} of type {type(entry).__name__}"
            )
            raise _fault(task, "prompts", f"{what}; {_WAY_OUT}")
        if isinstance(entry, Prompt) and not (isinstance(entry.id, str) and entry.id):
            what = f"entry {number} of split {split!r} has the id {entry.id!r}"
            raise _fault(task, "prompts", f"{what}: use a string that no other prompt has")
    return found


def _check_ids(task: Task, split: str, entries: Sequence[Prompt | LeftOut]) -> None:
    known: dict[str, int] = {}
    for number, entry in enumerate(entries):
        if not isinstance(entry, Prompt):
            continue
        if (first := known.setdefault(entry.id, number)) != number:
            places = [_place(number, entries[number]) for number in (first, number)]
            what = f"entries {' and '.join(places)} of split {split!r} have the id {entry.id!r}"
            raise _fault(task, "prompts", f"{what}: make the ids unique")


def _place(number: int, entry: Prompt | LeftOut) -> str:
    return f"{number} ({entry.place})" if entry.place else str(number)


def _fault(task: Task, method: str, what: str) -> ConfigError:
    where = line_of(getattr(task, method))
    return ConfigError("data.task", f"{type(task).__qualname__}.{method}" + (f" ({where})" if where else ""), what)
