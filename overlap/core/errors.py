"""Errors of overlap. What a *program* did wrong is never one of them: it is a verdict (see ``sandbox``).

``exit_code``: 2 where the caller's input is wrong, and nothing was lost; else 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

SHOWN = 300
"""Characters of a field or a value that an error shows."""


def one_line(text: object, limit: int | None = None) -> str:
    """Text on one line: each run of white space becomes a blank, and what exceeds ``limit`` characters is cut off."""
    return " ".join(str(text).split())[:limit]


def count_of(number: int, noun: str, nouns: str = "") -> str:
    """``1 sample``, ``2 samples``."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def near_or_all(given: object, known: Iterable[str], else_: str = "use one of {}") -> str:
    """The way out for a name that is none: whether the ``known`` one that is spelt nearly so was meant, in whatever
    case; or else ``else_``, with all of them in the place of its braces.
    """
    from difflib import get_close_matches  # only where something is refused

    spelt = {name.lower(): name for name in map(str, known)}
    near = get_close_matches(str(given).lower(), spelt, n=1, cutoff=0.7)
    return f"did you mean {spelt[near[0]]}?" if near else else_.format(", ".join(spelt.values()))


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


class OverlapError(Exception):
    """Base of every error that this package raises on purpose."""

    exit_code = 1


class ConfigError(OverlapError, ValueError):
    """Bad input, in three parts: the field, the value it got, and the way out."""

    exit_code = 2

    def __init__(self, field: str, value: object, way_out: str) -> None:
        super().__init__(f"{_cut(field)}={_cut(one_line(repr(value)))}: {way_out}")
        self.field, self.value, self.way_out = field, value, way_out

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.field, self.value, self.way_out)


@contextmanager
def refusing(
    field: str, value: object, fault: str, way_out: str, errors: tuple[type[Exception], ...] = (OSError,)
) -> Iterator[None]:
    """Raise an error of these types from inside as a ConfigError of ``field``: "{fault} ({reason}); {way_out}"; a
    ConfigError stays as it is.
    """
    try:
        yield
    except errors as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(field, value, f"{fault} ({error_reason(error)}); {way_out}") from error


def raise_all(errors: Sequence[ConfigError]) -> None:
    """Raise one error with all of them, in one line; nothing where there is none."""
    if not errors:
        return
    first, *rest = errors
    raise ConfigError(first.field, first.value, "; ".join([first.way_out, *map(str, rest)])) if rest else first


@contextmanager
def blaming(field: str) -> Iterator[None]:
    """Re-raise a ConfigError from inside as one of ``field``, where the value came from."""
    try:
        yield
    except ConfigError as error:
        raise type(error)(field, error.value, error.way_out) from error


class DataError(ConfigError):
    """A malformed row: ``field`` is "path:line", ``value`` its content (shortened)."""


class EngineError(OverlapError, RuntimeError):
    """The rollout engine failed, died, or has an API that this package does not know."""


class EngineLost(EngineError):
    """The engine that had these weights died; another one is being started, and needs them loaded again."""


class ParityError(EngineError):
    """After a weight sync, engine and learner log-probs differ by more than the bound."""


class LearnerError(OverlapError, RuntimeError):
    """The learner refused a call, and would refuse it again; or, as ``LearnerDiedError``, it has died."""


class LearnerDiedError(LearnerError):
    """A learner rank was killed, raised an unexpected error, or did not answer in time; a restart may help."""


class ClusterLost(EngineError, LearnerError):
    """The Ray head node is unreachable: no other engine or rank can be started on a node either."""


class VerifierError(OverlapError, RuntimeError):
    """The verifier (not the programs it judges) fails more often than the run allows."""


class RunDirError(OverlapError, OSError):
    """The run directory cannot be written, for instance because the disk is full."""


class StoppedError(OverlapError, RuntimeError):
    """The run was stopped, as its owner asked, before it had anything to save."""


class CallbackError(OverlapError, RuntimeError):
    """A callback, which is the user's code, raised an error, returned something unusable, or did not return."""


class StaleBatchError(OverlapError, AssertionError):
    """The learner received a sample older than ``max_staleness``."""


class EmptyBatchesError(OverlapError, RuntimeError):
    """Several steps in a row had no group with a mixed outcome."""


class RolloutError(OverlapError, RuntimeError):
    """The rollout of an episode, which is the user's code, raised an error or returned something unusable."""


class EpisodeError(OverlapError, RuntimeError):
    """A turn is refused, and the policy is not asked. An episode that ends by this error is truncated; one that ends by
    RequestRefused is a failure of its task.
    """


class RequestRefused(EpisodeError, ValueError):
    """A turn asks for something impossible, or for something that would change how the policy is sampled."""


class ContextFull(EpisodeError):
    """The dialog fills the context."""


class EpisodeOver(EpisodeError):
    """The episode has used up its turns, its tokens or its time, or has ended."""


_ACTIVITIES = {
    "generate": "generation",
    "verify": "verification",
    "learn": "learning",
    "load": "loading the weights",
    "evaluate": "evaluation",
}


class StageError(OverlapError, RuntimeError):
    """A stage failed. ``stage`` and ``sample`` (an id, "step 3", "version 3") say where, ``__cause__`` says why."""

    def __init__(self, stage: str, sample: str, cause: BaseException) -> None:
        which = "at" if sample.startswith("step") else "for" if sample.startswith("version") else "for sample"
        where = f" {which} {sample}" if sample else ""
        super().__init__(f"{_ACTIVITIES.get(stage, stage)} failed{where}: {type(cause).__name__}: {cause}")
        self.stage, self.sample = stage, sample


def error_reason(error: BaseException, limit: int = 200) -> str:
    """Reason of a failure, in one line: the text of the operating system, or else the text of the error."""
    return getattr(error, "strerror", None) or one_line(error, limit)


@contextmanager
def naming_stage(stage: str, sample: str) -> Iterator[None]:
    """Raise an error inside as a StageError that says where it happened; a StageError stays as it is."""
    try:
        yield
    except Exception as error:
        if isinstance(error, StageError):
            raise
        raise StageError(stage, sample, error) from error


def compile_error(log: str) -> str:
    """The line of a compiler's log that names the first error."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "")[:200]
