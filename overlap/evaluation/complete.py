"""The answers that a file of them still lacks: drawn, judged, and written down one by one, so that none is done twice.

AnswerFile ──▶ requests that have no result ──▶ generator (or the file) ──▶ verifier ──▶ AnswerFile
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from overlap.core import Generator, Prompt, Request, Scored, Trajectory, Verifier
from overlap.errors import ConfigError
from overlap.evaluation.answer_file import AnswerFile
from overlap.evaluation.evaluate import OnScored
from overlap.evaluation.sampling import STALL_S, answers


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How many answers to each prompt, and by what law."""

    samples: int = 16
    temperature: float = 0.6
    """0 for the likeliest tokens."""
    top_p: float = 0.95

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ConfigError("--samples", self.samples, "use 1 or more")
        if not 0 <= self.temperature <= 2:
            raise ConfigError("--temperature", self.temperature, "use a number from 0 to 2")
        if not 0 < self.top_p <= 1:
            raise ConfigError("--top-p", self.top_p, "use a share above 0 and at most 1")
        if self.temperature == 0 and self.samples > 1:
            raise ConfigError("--samples", self.samples, "greedy answers to a problem are all the same: use 1")


async def complete_answers(
    generator: Generator,
    verifier: Verifier,
    prompts: Sequence[Prompt],
    draw: SamplingOptions,
    file: AnswerFile,
    *,
    progress: OnScored | None = None,
    stall_s: float = STALL_S,
) -> None:
    """Draw and judge what ``file`` lacks; recorded answers are not drawn again, nor judged when they were.

    The doors must be started, with a version loaded, but the generator only where an answer is missing; ``stall_s``:
    see ``answers``. Raises StageError for what the doors raise and RunDirError; what was there until then is in the
    file.
    """
    places = [(g, s) for g, prompt in enumerate(prompts) for s in range(draw.samples) if not file.result(prompt, s)]
    # Negative groups: ids that no training sample has.
    asked = [Request(-1 - g, s, prompts[g], draw.temperature, draw.top_p) for g, s in places]
    done = len(prompts) * draw.samples - len(asked)

    def on_scored(scored: Scored) -> None:
        nonlocal done
        done += 1
        file.note(scored)
        if progress is not None:
            progress(done, len(prompts) * draw.samples)

    await answers(_Kept(generator, file), verifier, asked, on_scored, stall_s=stall_s)


class _Kept:
    """A generator whose answers are written down, and that gives those again that were."""

    def __init__(self, generator: Generator, file: AnswerFile) -> None:
        self._generator, self._file = generator, file

    async def generate(self, request: Request) -> Trajectory:
        if (known := self._file.drawn(request.prompt, request.sample)) is not None:
            return Trajectory(request, (), (), known.text, known.finish, (), 0.0, 0.0)
        trajectory = await self._generator.generate(request)
        if trajectory.finish != "abort":
            self._file.keep(trajectory)
        return trajectory
