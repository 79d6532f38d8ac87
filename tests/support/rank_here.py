"""A learner's rank in this process, with the time that the parts of its step take."""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from overlap.config.fields import Config
from overlap.learner.micro_batch import PromptGroup, Response
from overlap.placement.seats import place_here


def rank_here(cfg: Config, policy: Path, scratch: Path, *, kernels: bool = True, compiles: bool = False) -> Any:
    """What a rank's process serves, ready for calls. One for each process: it joins a group. Without ``kernels``
    what is compiled, where that is asked for, is traced alone: on a CPU they take g++ minutes.
    """
    from overlap.learner import compiled, rank
    from overlap.learner.commands import Commands
    from overlap.learner.processes import RankSpec, rank_environment

    if not kernels:
        compiled.BACKEND = "aot_eager"
    compiled.worth_compiling = lambda device: compiles
    placement = place_here(cfg)
    os.environ.update(rank_environment(0, 1) | placement.ranks[0].environment)
    spec = RankSpec(
        rank=0, rendezvous=scratch / f"rendezvous-{os.getpid()}", policy=policy, critic=policy,
        cfg=cfg, total_updates=1000, placement=placement,
    )  # fmt: skip
    device = rank._device(spec)
    rank._join(spec, device)
    return Commands(spec, device)


def random_groups(lengths: Sequence[tuple[int, tuple[int, ...]]], vocab: int) -> list[PromptGroup]:
    """A group for each prompt and its responses, by their lengths; the log-probs of the samples are about those of a
    policy that knows nothing.
    """
    import torch

    def tokens(count: int) -> array[int]:
        return array("i", torch.randint(vocab, (count,)).tolist())

    def response(number: int, length: int) -> Response:
        return Response(tokens(length), array("f", [known] * length), 1.0 if number % 2 else -1.0)

    torch.manual_seed(0)
    known = -torch.log(torch.tensor(float(vocab))).item()
    return [
        PromptGroup(tokens(prompt), tuple(response(number, length) for number, length in enumerate(responses)))
        for prompt, responses in lengths
    ]


class PartClock:
    """Times the parts of a rank's step, forward and backward passes of the output layer apart from the whole's."""

    def __init__(self, rank: Any, cuda: bool) -> None:
        from overlap.learner import head

        self.parts: list[tuple[str, Any, Any]] = []
        self._cuda, model = cuda, rank._trainer.model
        model.engine.forward = self._of("forward", model.engine.forward)
        model.module.head.forward = self._of("forward of the head", model.module.head.forward)
        head._Logprobs.backward = staticmethod(self._of("backward of the head", head._Logprobs.backward))  # type: ignore[method-assign]
        model.backward = self._of("backward", model.backward)
        model.step = self._of("optimizer", model.step)

    def _of(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = self._now()
            result = call(*args, **kwargs)
            self.parts.append((name, start, self._now()))
            return result

        return timed

    def _now(self) -> Any:
        import torch

        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self) -> None:
        """Until the device is done."""
        import torch

        if self._cuda:
            torch.cuda.synchronize()

    def milliseconds(self) -> dict[str, float]:
        """Of each part, by its name."""
        found = dict[str, float]()
        for name, start, end in self.parts:
            took = start.elapsed_time(end) if self._cuda else (end - start) * 1e3
            found[name] = round(found.get(name, 0.0) + took, 2)
        return found
