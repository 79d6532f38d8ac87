"""A reward function of another trainer as a task: rows of data ──▶ prompts; an answer and its row ──▶ the function.

    overlap train --reward my_rewards:accuracy --style trl data.train=rows.jsonl ...
    overlap.train(cfg, overlap.reward_task(accuracy, "rows.jsonl"))

The function runs in a reward worker process, with a deadline, and is called as its trainer calls it
(``sandbox.rewards.styles``): None masks the sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from overlap.core import LeftOut, Prompt, described_error, line_of
from overlap.core.errors import ConfigError, OverlapError
from overlap.core.user_code import RewardFault
from overlap.rows.row import DUPLICATE, IDS, SourceRow, Unusable, held_out, made_row, own_split
from overlap.rows.sources import source_rows
from overlap.rows.split_file import is_split_file, split_rows
from overlap.task import Task, rendered_chat, task_options
from sandbox.rewards.function_path import named_function
from sandbox.rewards.styles import Answered, BadReward, MissingColumn, Style, StyleError, find_style

if TYPE_CHECKING:
    from overlap.config.fields import Config
    from sandbox.core.nouns import Judgement

TASK = "overlap.rewards:RewardTask"
"""Value of ``data.task`` for ``RewardTask``."""
_PROMPTS = ("prompt", "messages", "input", "question", "problem")
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class RewardOptions:
    """``data.options`` of a task that is made of a reward function."""

    reward: str = ""
    """The function: "module:function" or "file.py:function"."""
    style: Literal["auto", "plain", "trl", "verl"] = "auto"
    """The trainer that it was written for; "auto": the one that its parameters tell."""
    prompt: str = ""
    """Column of the prompt, a text or messages; "": the first of prompt, messages, input, question and problem."""
    id: str = ""
    """Column of the ids; "": the first of id, task_id, problem_id and question_id, or else the row's number."""
    text_prompt: Literal["raw", "user"] = "raw"
    """Use of a prompt that is a text: "raw": it is continued as it is; "user": it is the user's turn."""
    language: str = "python"
    """In the plain style: the language of the program that is taken out of the answer."""


@dataclass(frozen=True, slots=True)
class RowPrompt:
    """Data of a prompt of such a task: its row, and the prompt as it is in the row."""

    row: Mapping[str, Any]
    prompt: str | Sequence[Mapping[str, Any]]


class RewardTask(Task):
    """See the module. ``function``: the reward function, or the "module:function" or "file.py:function" that names it.
    ``train`` and ``heldout``: where their rows lie (``overlap.rows``; a split file too), or the rows themselves; "" for
    ``heldout``: what the split file says, or else the rows' own column ``split``, or a tenth of the rows of ``train``,
    by a hash of the id. Raises ConfigError.
    """

    options: ClassVar[type] = RewardOptions

    def __init__(
        self,
        function: Callable[..., Any] | str,
        train: str | Rows = "",
        heldout: str | Rows = "",
        given: RewardOptions | None = None,
    ) -> None:
        self._given = given or RewardOptions()
        self._target = function if isinstance(function, str) else None
        self._function, self._style = _found(function, self._given.style)
        self._train, self._heldout = train, heldout
        name = getattr(self._function, "__name__", type(self._function).__name__)
        self.called = {"reward": self._target or name}
        """Names of its methods in messages."""

    @classmethod
    def from_config(cls, cfg: Config) -> RewardTask:
        given = task_options(cfg, cls)
        if not given.reward:
            raise ConfigError("data.options.reward", "", "name a reward function, module:function or file.py:function")
        if not cfg.data.train:
            raise ConfigError("data.train", "", "name the rows that the reward function is for: a file, or a hub id")
        return cls(given.reward, cfg.data.train, cfg.data.heldout, given)

    def __reduce__(self) -> tuple[Any, ...]:
        """A worker needs the function alone; one that was named is imported there."""
        return type(self), (self._target or self._function, "", "", self._given)

    @property
    def style(self) -> str:
        """The trainer as which the function is called."""
        return self._style.name

    def prompts(self, tokenizer: Any, split: str) -> Sequence[Prompt | LeftOut]:
        own = self._heldout if split == "heldout" and self._heldout else self._train
        chosen = isinstance(own, str) and is_split_file(own)
        shared = not self._heldout and not chosen
        field = f"data.{split if self._heldout else 'train'}"
        found, places, checked = list[Prompt | LeftOut](), dict[str, str](), False
        rows = list(split_rows(str(own), split, field, self._id) if chosen else _rows(own, field))
        others = self._of_the_other_split(rows, split, field) if shared else set[str]()
        for row in rows:
            try:
                if isinstance(row, Unusable):
                    raise row
                id = self._id(row)
                if row.place in others:
                    continue
                meant = "" if shared or chosen else own_split(row.values.get("split"), row.place, field)
                if meant not in ("", split):
                    raise row.fault(id, "as its row says", f"{meant} by its own split", by_choice=True)
                prompt = self._prompt(tokenizer, row, id)
                checked = checked or self._check_columns(row)
                if id in places:
                    raise row.fault(id, f"was already used at {places[id]}; ids must be unique", DUPLICATE)
            except Unusable as error:
                if not shared or split == "train":
                    found.append(error.left_out())
                continue
            places[id] = row.place
            found.append(prompt)
        return found

    def reward(self, prompt: Prompt, answer: str, judgement: Judgement | None) -> float | None:
        return self.reward_of_tokens(prompt, answer, ())

    def reward_of_tokens(self, prompt: Prompt, answer: str, token_ids: Sequence[int]) -> float | None:
        """The reward of an answer that consists of these tokens. Raises RewardFault, and what the function raises."""
        try:
            return self._style.call(self._function, self._answered(prompt, answer, token_ids))  # type: ignore[no-any-return]
        except BadReward as error:
            raise RewardFault(str(error)) from error

    def _answered(self, prompt: Prompt, answer: str, token_ids: Sequence[int]) -> Answered:
        known: RowPrompt = prompt.data
        return Answered(known.row, known.prompt, answer, token_ids, language=self._given.language)

    def _of_the_other_split(self, rows: Sequence[SourceRow | Unusable], split: str, field: str) -> set[str]:
        """Places of the rows of one source that belong to the other split."""
        known = [row for row in rows if isinstance(row, SourceRow)]
        held = held_out(((self._id(row), row.values.get("split"), row.place) for row in known), field)
        return {row.place for row, out in zip(known, held, strict=True) if out != (split == "heldout")}

    def _id(self, row: SourceRow) -> str:
        return row.id(*((self._given.id,) if self._given.id else IDS))

    def _prompt(self, tokenizer: Any, row: SourceRow, id: str) -> Prompt:
        """Raises Unusable for a row that has no prompt, or not the columns of the style."""
        asked = self._asked(row)
        if isinstance(asked, str) and self._given.text_prompt == "raw":
            ids = tokenizer(asked)["input_ids"]
        else:
            messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
            _, ids = rendered_chat(tokenizer, messages)
        made = Prompt(id, tuple(map(int, ids)), data=RowPrompt(dict(row.values), asked), place=row.place)
        try:
            self._style.arguments(self._answered(made, "", ()))
        except MissingColumn as error:
            has = sorted(map(str, row.values))
            raise row.fault(has, f"has no {error}, which the style {self.style} hands over") from error
        return made

    def _asked(self, row: SourceRow) -> str | list[dict[str, Any]]:
        names = (self._given.prompt,) if self._given.prompt else _PROMPTS
        asked = next((row.values[name] for name in names if row.values.get(name)), None)
        if asked is None:
            raise row.fault(sorted(map(str, row.values)), f"has no prompt: none of the columns {', '.join(names)}")
        if isinstance(asked, str):
            return asked
        if not isinstance(asked, list) or not all(_is_message(part) for part in asked):
            raise row.fault(asked, "a prompt is a text, or a list of messages {role, content} whose content is a text")
        return asked

    def _check_columns(self, row: SourceRow) -> bool:
        """Raises ConfigError where the function cannot be called with the columns of the row."""
        columns = [name for name in row.values if isinstance(name, str)]
        if why := self._style.misfit(self._function, columns):
            place = line_of(self._function)
            what = f"{self.called['reward']}{f' ({place})' if place else ''}"
            way_out = f"cannot be called with the columns of {row.place}, {', '.join(columns)}: {why}"
            raise ConfigError("data.options.reward", what, way_out)
        return True


def reward_task(
    function: Callable[..., Any] | str, train: str | Rows, heldout: str | Rows = "", **options: Any
) -> RewardTask:
    """The task of a reward function that was written for another trainer.

    Args:
        function: the function, or "module:function" or "file.py:function" that names it. It may be async.
        train: the rows that are trained on: a file, a folder or a hub id as in ``data.train``, or a list of dicts.
        heldout: those of the evaluation; "": a tenth of the others.
        options: fields of ``overlap.rewards.RewardOptions`` but ``reward``: ``style="trl"``, ``prompt="question"``.

    Raises ConfigError, where the function fits no style or several among others.
    """
    from overlap.config.hints import section_from

    return RewardTask(function, train, heldout, section_from(RewardOptions, options, "reward_task"))


def reward_overrides(reward: str, style: str) -> list[str]:
    """Return ``--reward`` and ``--style`` as overrides of the configuration."""
    task = [f"data.task={TASK}", f"data.options.reward={reward}"] if reward else []
    return [*task, *([f"data.options.style={style}"] if style else [])]


def _found(function: Callable[..., Any] | str, style: str) -> tuple[Callable[..., Any], Style]:
    where = "data.options.reward"
    try:
        found = _imported(function) if isinstance(function, str) else function
        return found, find_style(found, style)
    except Exception as error:  # whatever the user's file raises
        if isinstance(error, OverlapError):
            raise
        shown = function if isinstance(function, str) else getattr(function, "__name__", repr(function))
        why = str(error) if isinstance(error, StyleError) else described_error(error)
        raise ConfigError(where, shown, why) from error


def _imported(target: str) -> Any:
    if not target.rpartition(":")[0].endswith(".py"):
        from overlap.config.import_path import import_named

        return import_named("data.options.reward", target, kind="function", example="my_rewards:accuracy")
    return named_function(target)


def _rows(source: str | Rows, field: str) -> Iterator[SourceRow | Unusable]:
    if isinstance(source, str):
        yield from source_rows(source, field) if source else ()
        return
    for number, values in enumerate(source, start=1):
        yield made_row(f"row {number}", values, str(number))


def _is_message(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("role"), str) and isinstance(part.get("content"), str)
