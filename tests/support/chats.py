"""A tokenizer of letters with a chat template of the usual kind, and an engine that says what it is told to say."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from overlap.config.fields import Config, ModelConfig
from overlap.config.rollout import EpisodeConfig
from overlap.core import Finish, Prompt, Request, Trajectory, VersionSpan
from overlap.core.interfaces import ProcesslessEngine
from overlap.server.chat import Chat
from overlap.server.episodes import episodes
from overlap.server.template import ChatTemplate
from overlap.server.turn_request import turn_request

START, END, PAD = 1, 2, 10
_SPECIAL = {"<|im_start|>": START, "<|im_end|>": END}


class Letters:
    """Ids are letters, but for the two marks of ChatML. ``chat_template``: any text that is not empty."""

    chat_template = "chatml"
    name_or_path = "letters"
    all_special_ids = (START, END)

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        parts = re.split(r"(<\|im_start\|>|<\|im_end\|>)", text)
        return {"input_ids": [i for part in parts for i in _ids(part)]}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        marks = {} if skip_special_tokens else {id: mark for mark, id in _SPECIAL.items()}
        return "".join(marks.get(id, chr(id - PAD) if id >= PAD else "") for id in ids)

    def apply_chat_template(
        self,
        messages: list[dict[str, Any]],
        tools: Any = None,
        tokenize: bool = False,
        add_generation_prompt: bool = True,
    ) -> str:
        text = f"<|im_start|>tools\n{json.dumps(tools)}<|im_end|>\n" if tools else ""
        text += "".join(self.rendered(messages, number) for number in range(len(messages)))
        return text + ("<|im_start|>assistant\n" if add_generation_prompt else "")

    def rendered(self, messages: list[dict[str, Any]], number: int) -> str:
        """One message; subclasses render as other families do."""
        message = messages[number]
        calls = json.dumps(message["tool_calls"]) if message.get("tool_calls") else ""
        thought = f"<think>{message['reasoning_content']}</think>" if message.get("reasoning_content") else ""
        return f"<|im_start|>{message['role']}\n{thought}{message['content']}{calls}<|im_end|>\n"


def _ids(part: str) -> list[int]:
    return [_SPECIAL[part]] if part in _SPECIAL else [ord(letter) + PAD for letter in part]


Sampled = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]
"""What an engine saw, and ids and log-probs of what it sampled behind that."""
Says = Callable[[Request], tuple[str, Finish]]


class Voice(ProcesslessEngine):
    """An engine door. ``says`` gives the words of an answer and how it ended; ``seen`` are the prompts that it got."""

    def __init__(self, says: Says = lambda request: ("yes", "stop"), version: int = 3) -> None:
        super().__init__()
        self._says, self._rng, self._version = says, random.Random(7), version
        self.seen: list[Request] = []
        self.sampled: list[Sampled] = []
        """Prompt, ids and log-probs of each answer."""

    async def generate(self, request: Request) -> Trajectory:
        self.seen.append(request)
        text, finish = self._says(request)
        ids = [*Letters()(text)["input_ids"], *([END] if finish == "stop" else [])]
        if request.max_tokens is not None and len(ids) > request.max_tokens:
            ids, finish = ids[: request.max_tokens], "length"
        logprobs = [-self._rng.random() for _ in ids]
        spans = (VersionSpan(self._version, 0, len(ids)),) if ids else ()
        text = Letters().decode(ids, skip_special_tokens=True)
        made = Trajectory(request, ids, logprobs, text, finish, spans, 1.0, 2.0)
        self.sampled.append((tuple(request.prompt.token_ids), tuple(made.token_ids), tuple(made.logprobs)))
        return made

    async def load(self, update: Any) -> None:
        self._version = update.version

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        return [0.0] * (len(token_ids) - 1)


@asynccontextmanager
async def free() -> AsyncIterator[None]:
    """A slot that is always to be had."""
    yield


async def planned(chat: Chat, messages: Any, **options: Any) -> Any:
    """The turn that ``chat`` would sample."""
    return await chat.plan(turn_request(messages, **options))


async def never(*_: Any) -> Any:
    raise AssertionError("nobody asked for the sandbox")


EPISODES = Config(model=ModelConfig(prompt_tokens=400, response_tokens=100), episode=EpisodeConfig(tokens=2000))


def rolling(
    rollout: Any, voice: Any = None, cfg: Config = EPISODES, judge: Any = never, tokenizer: Any = None
) -> Any:  # fmt: skip
    """An engine whose episodes are rolled out by ``rollout``."""
    template = ChatTemplate(tokenizer or Letters())
    return episodes(cfg, voice or Voice(), template, rollout, "Mine.rollout", judge)


def one(rollout: Any, **options: Any) -> Trajectory:
    """One episode of it, g4s2."""
    return asyncio.run(asyncio.wait_for(rolling(rollout, **options).generate(Request(4, 2, prompt("p9"))), 30))


def prompt(id: str = "p", text: str = "ask") -> Prompt:
    return Prompt(id, Letters()(text)["input_ids"], data=text)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def check_books(sampled: Sequence[Sampled], found: Chat, delivered: int | None = None) -> None:
    """Each delivered turn is trained once, behind what the engine saw, as the engine sampled it; nothing else is."""
    trained = []
    for branch in found.branches():
        front, at = tuple(branch.prompt_ids), 0
        whole, logprobs = (*front, *branch.token_ids), tuple(branch.logprobs)
        mask = branch.mask or bytes([1]) * len(logprobs)
        while at < len(mask):
            if not mask[at]:
                assert logprobs[at] == 0.0
                at += 1
                continue
            seen, rest = whole[: len(front) + at], whole[len(front) + at :]
            known = {
                (prompt, ids, values)
                for prompt, ids, values in sampled
                if prompt == seen and ids and ids == rest[: len(ids)] and values == logprobs[at : at + len(ids)]
            }
            turn = max((one for one in known if all(mask[at : at + len(one[1])])), key=lambda one: len(one[1]))
            trained.append(turn)
            at += len(turn[1])
        assert sum(span.end - span.start for span in branch.spans) == branch.trained
    arrived = [found.episode.turns[number] for number in sorted(found.episode.delivered)]
    expected = [(tuple(turn.token_ids), tuple(turn.logprobs)) for turn in arrived if len(turn.token_ids)]
    assert sorted((ids, values) for _, ids, values in trained) == sorted(expected)
    if delivered is not None:
        assert len(arrived) == delivered
