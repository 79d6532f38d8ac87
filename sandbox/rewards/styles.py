"""Call the reward functions of other trainers: one adapter per style, chosen by a function's parameters.

    row of the data × answer ──▶ Style.call ──▶ the function ──▶ Style.reads ──▶ a number, or None: not judged

plain      reward(problem, program, language)                        the form of `sandbox check-reward`
trl        reward(prompts=[..], completions=[..], completion_ids=[..], ...)    the columns of the data as lists
verl       compute_score(data_source=, solution_str=, ground_truth=, extra_info=)

Each function gets one answer per call, also the one that takes lists. An async function is awaited.
"""

from __future__ import annotations

import asyncio
import inspect
import numbers
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from sandbox.errors import SandboxError
from sandbox.rewards.extract import extract_program

Function = Callable[..., Any]
_REPR: Final = reprlib.Repr()  # also of a value whose own repr raises
_REPR.maxstring = _REPR.maxother = 100
_TRL_OWN: Final = frozenset({"prompt", "completion", "completion_ids"})


class StyleError(SandboxError, ValueError):
    """A reward function fits no style, or several, or another one than was asked for."""


class BadReward(ValueError):
    """The return value of a reward function is no reward of its style. The text begins with "returned"."""


class MissingColumn(ValueError):
    """The data has no column that a style hands over. The text names it."""


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer to a row of the data, with all that a trainer knows of it."""

    row: Mapping[str, Any]
    """The columns."""
    prompt: str | Sequence[Mapping[str, Any]]
    """Prompt as it is in the row: a text, or messages."""
    answer: str
    answer_ids: Sequence[int] = ()
    program: str | None = None
    """The program in the answer, for the plain style; None: taken out of the answer by the rule of `extract`."""
    language: str = "python"


@dataclass(frozen=True, slots=True)
class Style:
    """The calling convention of one trainer for reward functions."""

    name: str
    form: str
    """Form of such a function, for messages."""
    arguments: Callable[[Answered], tuple[tuple[Any, ...], dict[str, Any]]]
    """The positional and the keyword arguments of a call. Raises MissingColumn."""
    reads: Callable[[Any], Any]
    """The number, or None, in what the function returned. Raises BadReward."""
    positional: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    takes_columns: bool = False
    """The columns of the data, but _TRL_OWN, are further keyword arguments."""

    def call(self, function: Function, answered: Answered) -> Any:
        """The reward of an answer, a number or None. Raises what the function raises, MissingColumn and BadReward."""
        positional, keywords = self.arguments(answered)
        returned = function(*positional, **keywords)
        if inspect.isawaitable(returned):
            returned = _runner().run(_awaited(returned))
        return _number(self.reads(returned), self.name)

    def misfit(self, function: Function, columns: Sequence[str] | None = None) -> str:
        """Return why the function cannot be called in this style; "" where it can. ``columns`` of the data: None where
        they are not known yet, so that any further parameter of a function that has names of the style may be one.
        """
        if (signature := _signature(function)) is None:
            return ""
        given = dict.fromkeys(self.keywords)
        if self.takes_columns:
            known = _named_alike(self, function)
            further = columns if columns is not None else _required(signature, self) if known else ()
            given |= {name: None for name in further if name not in _TRL_OWN}
        try:
            signature.bind(*self.positional, **given)
        except TypeError as error:
            return str(error)
        return ""


def find_style(function: Function, asked: str = "") -> Style:
    """The style ``asked`` for, or the only one in which a function can be called and that most of its parameters' names
    speak for: one that has names of a style, but cannot be called in it, is not taken for another's. "" and "auto" ask
    for the only one. Raises StyleError with the choices.
    """
    name = str(getattr(function, "__qualname__", None) or type(function).__qualname__)
    if isinstance(function, type) or not callable(function):
        kind = "a class" if isinstance(function, type) else "no function"
        raise StyleError(f"{name} is {kind}: name a function, or an object that can be called")
    if asked not in ("", "auto"):
        if asked not in STYLES:
            raise StyleError(f"style {asked!r} is unknown; use one of {', '.join(STYLES)}")
        style = STYLES[asked]
        if why := style.misfit(function):
            raise StyleError(f"{name} cannot be called in the style of {asked} ({why}); write `{style.form}`")
        return style
    known = {each: _named_alike(style, function) for each, style in STYLES.items()}
    most = max(known.values())
    fitting = [each for each, style in STYLES.items() if known[each] == most and not style.misfit(function)]
    if len(fitting) == 1:
        return STYLES[fitting[0]]
    name = f"{name}{_signature(function) or '(...)'}"
    if fitting:
        raise StyleError(f"{name} can be called in several styles; add --style {' or --style '.join(fitting)}")
    if most:
        alike = STYLES[max(known, key=lambda each: known[each])]
        looks = f"looks like a reward of {alike.name}, but cannot be called as one ({alike.misfit(function)})"
        raise StyleError(f"{name} {looks}; write `{alike.form}`")
    forms = "; ".join(f"{style.name}: {style.form}" for style in STYLES.values())
    raise StyleError(f"{name} fits no style of reward functions; write one of {forms}")


# --- the styles -------------------------------------------------------------------------------------------------------


def _plain_arguments(a: Answered) -> tuple[tuple[Any, ...], dict[str, Any]]:
    program = a.program
    if program is None:
        program = extract_program(a.answer, language=a.language) or a.answer
    return (dict(a.row), program, a.language), {}


def _trl_arguments(a: Answered) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments. Logs by ``log_extra`` and ``log_metric`` are dropped; ``trainer_state`` is None."""
    said: Any = a.answer if isinstance(a.prompt, str) else [{"role": "assistant", "content": a.answer}]
    columns = {name: [value] for name, value in a.row.items() if name not in _TRL_OWN}
    ours = {"prompts": [a.prompt], "completions": [said], "completion_ids": [list(a.answer_ids)]}
    return (), columns | ours | {"trainer_state": None, "log_extra": _dropped, "log_metric": _dropped}


def _verl_arguments(a: Answered) -> tuple[tuple[Any, ...], dict[str, Any]]:
    model = a.row.get("reward_model")
    if not isinstance(model, Mapping) or "ground_truth" not in model:
        raise MissingColumn("reward_model.ground_truth")
    if "data_source" not in a.row:
        raise MissingColumn("data_source")
    extra = {**(a.row.get("extra_info") or {}), "num_turns": None, "rollout_reward_scores": {}}
    call = {"data_source": a.row["data_source"], "solution_str": a.answer, "ground_truth": model["ground_truth"]}
    return (), call | {"extra_info": extra}


def _read_trl(returned: Any) -> Any:
    """Return the reward of one completion; None and NaN are "does not apply"."""
    values = _listed(returned)
    if not isinstance(values, list | tuple) or len(values) != 1:
        raise BadReward(f"returned {_shown(returned)}: return a list with a number, or None, per completion")
    value = _single(values[0])
    return None if isinstance(value, numbers.Real) and value != value else value


def _read_verl(returned: Any) -> Any:
    if not isinstance(returned, Mapping):
        return returned
    if "score" not in returned:
        raise BadReward(f'returned {_shown(returned)}: a dict needs a number as "score"')
    return returned["score"]


STYLES: Final[dict[str, Style]] = {
    style.name: style
    for style in (
        Style(
            "plain", "def reward(problem, program, language)", _plain_arguments, lambda one: one,
            ("problem", "program", "language"),
        ),
        Style(
            "trl", "def reward(prompts, completions, **kwargs)", _trl_arguments, _read_trl,
            keywords=("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"),
            takes_columns=True,
        ),
        Style(
            "verl", "def compute_score(data_source, solution_str, ground_truth, extra_info=None)", _verl_arguments,
            _read_verl, keywords=("data_source", "solution_str", "ground_truth", "extra_info"),
        ),
    )
}  # fmt: skip
"""Styles by name."""


# --- helpers ----------------------------------------------------------------------------------------------------------


def _required(signature: inspect.Signature, style: Style) -> list[str]:
    """Names of parameters that have no default and that the style itself does not fill."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = [p for p in signature.parameters.values() if p.kind in kinds]
    filled = {p.name for p in named[: len(style.positional)]} | {*style.keywords}
    return [p.name for p in named if p.default is p.empty and p.name not in filled]


def _named_alike(style: Style, function: Function) -> int:
    """Return how many of the style's own names are parameters of the function."""
    signature = _signature(function)
    parameters = signature.parameters.values() if signature else ()
    named = {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    return len({*style.positional, *style.keywords} & named)


def _signature(function: Function) -> inspect.Signature | None:
    """The parameters; None for a function that is written in C without them."""
    try:
        return inspect.signature(function)
    except (ValueError, TypeError):
        return None


def _dropped(*_: object, **__: object) -> None:
    """Replace TRL's loggers."""


def _listed(value: Any) -> Any:
    """An array or a tensor as the list, or the number, that it holds."""
    return value.tolist() if hasattr(value, "tolist") else value


def _single(value: Any) -> Any:
    """A number that an array or a tensor of one element holds; anything else as it is."""
    value = _listed(value)
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value


def _number(value: Any, style: str) -> Any:
    if value is None:
        return None
    number = value if isinstance(value, numbers.Real) else _single(value)
    if not isinstance(number, numbers.Real):
        needs = f"the style {style} needs a number, or None for what cannot be judged"
        raise BadReward(f"returned {_shown(value)} of type {type(value).__name__}: {needs}")
    return number


def _shown(value: object) -> str:
    text = " ".join(_REPR.repr(value).split())
    return text if len(text) <= 100 else f"{text[:99]}…"


async def _awaited(value: Any) -> Any:
    return await value


@cache
def _runner() -> asyncio.Runner:
    """The event loop of this process in which async functions run: one for all calls, since clients that a function
    keeps belong to the loop that they were made in.
    """
    return asyncio.Runner()
