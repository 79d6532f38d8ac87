"""A prompt crosses to a reward worker once, however many of its samples are rewarded there.

    Prompt ── dill, once ──▶ Dumped ── Sender, once per worker ──▶ call ──▶ Receiver ── loaded once ──▶ Prompt

A prompt may hold megabytes of the task's data. Both ends keep what was used last, within the same bounds, and the
driver says what to forget, so neither has to ask.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from overlap.core import Prompt
from overlap.process import PackedCall, pack_call

KEPT_MAX = 256
KEPT_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class DumpedPrompt:
    """A prompt as bytes. ``number`` names it to the workers; the prompt is held, so that its identity stays its own."""

    prompt: Prompt
    number: int
    data: bytes


class _Kept(OrderedDict[int, Any]):
    """What was used last, by number; ``size`` of an item in bytes."""

    def __init__(self, size: Callable[[Any], int]) -> None:
        super().__init__()
        self._size = size
        self._bytes = 0

    def keep(self, number: int, item: Any) -> list[int]:
        """Returns the numbers of what had to go; never of the newest."""
        self[number] = item
        self._bytes += self._size(item)
        gone = []
        while len(self) > 1 and (len(self) > KEPT_MAX or self._bytes > KEPT_BYTES_MAX):
            oldest, old = self.popitem(last=False)
            self._bytes -= self._size(old)
            gone.append(oldest)
        return gone


class PromptDumps:
    """The prompts that were dumped last, known by identity. For any thread."""

    def __init__(self, dump: Callable[[Prompt], bytes]) -> None:
        self._dump = dump
        self._kept = _Kept(lambda dumped: len(dumped.data))
        self._lock = threading.Lock()
        self._made = 0

    def of(self, prompt: Prompt) -> DumpedPrompt:
        """Raises what ``dump`` raises."""
        with self._lock:  # samples of one prompt come together: the first dumps it, the others wait
            if (known := self._kept.get(id(prompt))) is not None:
                self._kept.move_to_end(id(prompt))
                return known  # type: ignore[no-any-return]
            dumped = DumpedPrompt(prompt, self._made, self._dump(prompt))
            self._made += 1
            self._kept.keep(id(prompt), dumped)
            return dumped


class PromptSender:
    """What one worker has, as the driver knows it."""

    def __init__(self) -> None:
        self._there = _Kept(lambda size: int(size))

    def message(self, dumped: DumpedPrompt, answer: str) -> PackedCall:
        """The call of ``reward``: with the prompt where it is new there, and with the numbers of what to forget."""
        forget: list[int] = []
        new = dumped.number not in self._there
        if new:
            forget = self._there.keep(dumped.number, len(dumped.data))
        else:
            self._there.move_to_end(dumped.number)
        return pack_call("reward", dumped.number, dumped.data if new else None, forget, answer)


class PromptReceiver:
    """The worker's end."""

    def __init__(self, load: Callable[[bytes], Prompt]) -> None:
        self._load = load
        self._loaded: dict[int, Prompt] = {}
        self._raw: dict[int, bytes] = {}

    def receive(self, number: int, data: bytes | None, forget: Sequence[int]) -> Callable[[], Prompt]:
        """Take note of what was sent; returns how to get the prompt, which may raise what the user's classes raise."""
        if data is not None:
            self._raw[number] = data
        for gone in forget:
            self._loaded.pop(gone, None)
            self._raw.pop(gone, None)
        return lambda: self._prompt(number)

    def _prompt(self, number: int) -> Prompt:
        if number not in self._loaded:
            self._loaded[number] = self._load(self._raw[number])
            del self._raw[number]
        return self._loaded[number]
