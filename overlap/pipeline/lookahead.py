"""Number of steps that are worth having on their way: enough that the scarcest part never waits, and no more.

More than that could only wait, and age. With nothing in its way a step takes, from admission to landed weights,

    chain  = max(longest of generation + verification, first generation + all verification / verifiers) + learn + sync

and however many are on their way, one cannot follow the other sooner than the busiest part allows:

    period = max(all generation / sequences, all verification / verifiers, learn + sync)

so ceil(chain / period) steps keep that part busy (Little's law, and whole steps, for leases come back by the step).
Where engine and learner take turns on their devices, a step's responses have what the learner leaves of as many periods
as there are steps on their way. Then both are counted without learn and sync:

    period = max(all generation / sequences, all verification / verifiers - (learn + sync))

Generation counts from the moment at which the engine had room for the sample, not from its request, and without the
time in which the engine slept.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import MutableMapping
from statistics import median

from overlap.config.fields import Config
from overlap.core import Verifier
from overlap.pipeline.learning import StepResult

KEPT = 5
"""Steps whose median counts."""
FIRST = 2
"""Steps on their way until one has been measured."""
TOLERANCE = 0.05
"""Part of a step that is not worth another one."""


class Lookahead:
    """Fed with finished steps; ``leases`` is what the window may have out."""

    def __init__(self, cfg: Config, verifier: Verifier, *, turns: bool = False) -> None:
        """``turns``: engine and learner take them."""
        self._per_step, self._most = cfg.rollout.groups_per_step, cfg.rollout.max_staleness + 1
        self._sequences, self._verifier = cfg.rollout.sequences, verifier
        self._turns = turns
        self._ratios: deque[float] = deque(maxlen=KEPT)

    @property
    def leases(self) -> int:
        """At least those of one step, at most ``Config.leases``."""
        steps = math.ceil(median(self._ratios) - TOLERANCE) if self._ratios else FIRST
        return self._per_step * max(1, min(self._most, steps))

    def note(self, result: StepResult, decoded_s: MutableMapping[str, float]) -> None:
        """``decoded_s`` is each sample's generation, by id, without the wait for the engine; they are taken out."""
        times = [(decoded_s.pop(s.id, 0.0), max(0.0, s.finished_s - s.started_s)) for s in result.batch.all_samples]
        learned_s = sum(end - start for start, end in (result.learn_span, result.sync_span, result.parity_span))
        generated_s, verified_s = (math.fsum(column) for column in zip(*times, strict=True))
        busy_s = verified_s / self._verifier.concurrency
        decoding_s = generated_s / self._sequences
        chain = max(max(map(sum, times)), min(times)[0] + busy_s)
        if self._turns:
            period = max(decoding_s, busy_s - learned_s)
        else:
            chain, period = chain + learned_s, max(decoding_s, busy_s, learned_s)
        if period > 0:
            self._ratios.append(chain / period)
