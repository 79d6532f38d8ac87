"""A prompt crosses to a reward worker once, however many of its samples are rewarded there.

    Prompt ── dill, once ──▶ DumpedPrompt ── once per worker ──▶ call ──▶ worker ── loaded once ──▶ Prompt

A prompt may hold megabytes of the task's data. The driver keeps the prompts that were used last, within bounds; with
the next new prompt it has a worker forget the prompts that it does not keep any more.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from overlap.core import Prompt

KEPT_MAX = 256
KEPT_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class DumpedPrompt:
    """A prompt as bytes. ``number`` names it to the workers; the prompt is held, so that its identity stays its own."""

    prompt: Prompt
    number: int
    data: bytes


class PromptDumps:
    """The prompts that were dumped and used last, known by identity. For any thread."""

    def __init__(self, dump: Callable[[Prompt], bytes]) -> None:
        self._dump = dump
        self._kept: OrderedDict[int, DumpedPrompt] = OrderedDict()
        self._bytes = self._made = 0
        self._lock = threading.Lock()

    @property
    def numbers(self) -> set[int]:
        """Numbers of the prompts that are kept."""
        with self._lock:
            return {dumped.number for dumped in self._kept.values()}

    def of(self, prompt: Prompt) -> DumpedPrompt:
        """Raises what ``dump`` raises."""
        with self._lock:  # samples of one prompt come together: the first dumps it, the others wait
            if (known := self._kept.get(id(prompt))) is not None:
                self._kept.move_to_end(id(prompt))
                return known
            dumped = self._kept[id(prompt)] = DumpedPrompt(prompt, self._made, self._dump(prompt))
            self._made += 1
            self._bytes += len(dumped.data)
            while len(self._kept) > 1 and (len(self._kept) > KEPT_MAX or self._bytes > KEPT_BYTES_MAX):
                _, gone = self._kept.popitem(last=False)
                self._bytes -= len(gone.data)
            return dumped
