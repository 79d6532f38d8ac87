"""Errors of overlap, drawn as a tree.

    OverlapError
    ├── ConfigError        the caller's input is wrong            exit code 2, nothing was lost
    │   └── DataError      a row of a problem file is malformed   (names the file and the line)
    ├── EngineError        the generator failed or died           exit code 1
    │   ├── EngineLost     the engine died that had the weights: load them again
    │   ├── ClusterLost    the cluster is lost that its machine was of: no other engine can be started
    │   └── ParityError    engine and learner disagree after a sync
    ├── LearnerError       the learner refused, for a reason      exit code 1
    │   └── LearnerDiedError  a rank died, hung or broke: another try may go well
    ├── VerifierError      the verifier fails too often           exit code 1
    ├── RunDirError        the run directory cannot be written    exit code 1
    ├── StoppedError       the run was stopped before it could keep anything
    ├── StaleBatchError    a lease failed: a batch is older than promised
    ├── EmptyBatchesError  too many steps in a row had nothing to learn from
    ├── RolloutError       the task's own rollout of an episode failed; names the prompt
    ├── EpisodeError       a turn is refused; the episode may go on
    │   ├── RequestRefused    it asks for what cannot be, or must not be, done
    │   ├── ContextFull       its dialog leaves no room in the context
    │   └── EpisodeOver       the episode has used its turns, tokens or time, or has ended
    └── StageError         a stage of the pipeline died; names the stage and the sample

What a *program* did wrong is never an error: it is a verdict (see ``sandbox``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class OverlapError(Exception):
    """Base of every error that this package raises on purpose."""

    exit_code = 1


class ConfigError(OverlapError, ValueError):
    """Bad input, in three parts: the field, the value it got, and the way out."""

    exit_code = 2

    def __init__(self, field: str, value: object, way_out: str) -> None:
        super().__init__(f"{field}={value!r}: {way_out}")
        self.field, self.value, self.way_out = field, value, way_out

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.field, self.value, self.way_out)


@contextmanager
def blaming(field: str) -> Iterator[None]:
    """A ConfigError inside is one of ``field``: that is where its value came from."""
    try:
        yield
    except ConfigError as error:
        raise type(error)(field, error.value, error.way_out) from error


class DataError(ConfigError):
    """A malformed row: ``field`` is "path:line", ``value`` what stood there (shortened)."""


class EngineError(OverlapError, RuntimeError):
    """The rollout engine failed, died, or has an API shape that this adapter does not know."""


class EngineLost(EngineError):
    """The engine died that had the weights in question; another one is on its way, and wants them anew."""


class ClusterLost(EngineError):
    """The head of the cluster is gone that the engine's node was of: another engine cannot be started either."""


class ParityError(EngineError):
    """After a weight sync, engine and learner log-probs differ by more than the bound."""


class LearnerError(OverlapError, RuntimeError):
    """The learner cannot do what was asked; it would not the next time, either. Or a ``LearnerDiedError``."""


class LearnerDiedError(LearnerError):
    """A learner rank was killed, raised what nobody foresaw, or did not answer in time: its state is lost."""


class VerifierError(OverlapError, RuntimeError):
    """The verifier (not the programs it judges) fails more often than the run allows."""


class RunDirError(OverlapError, OSError):
    """The run directory cannot be written, for instance because the disk is full."""


class StoppedError(OverlapError, RuntimeError):
    """The run was stopped, as its owner asked, in a moment in which it had nothing to keep."""


class StaleBatchError(OverlapError, AssertionError):
    """The learner received a sample older than ``max_staleness``."""


class EmptyBatchesError(OverlapError, RuntimeError):
    """Several steps in a row had no group with a mixed outcome."""


class RolloutError(OverlapError, RuntimeError):
    """The rollout of an episode, which is the user's code, raised or gave what cannot be used."""


class EpisodeError(OverlapError, RuntimeError):
    """The policy is not asked for this turn. An episode that ends by it is truncated; by RequestRefused, its task has
    failed.
    """


class RequestRefused(EpisodeError, ValueError):
    """A turn asks for what cannot be done, or for what would change the law by which the policy is sampled."""


class ContextFull(EpisodeError):
    """The dialog is as long as the context."""


class EpisodeOver(EpisodeError):
    """The episode has used up its turns, its tokens or its time, or has ended."""


class StageError(OverlapError, RuntimeError):
    """A stage died. ``stage`` and ``sample`` say where; ``__cause__`` says why."""

    def __init__(self, stage: str, sample: str, cause: BaseException) -> None:
        super().__init__(f"stage {stage} died on sample {sample or '-'}: {type(cause).__name__}: {cause}")
        self.stage, self.sample = stage, sample


def first_error(error: BaseException) -> BaseException:
    """The error that brought a task group down, its first leaf: the others are its consequences."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def one_line(text: object, limit: int = 200) -> str:
    """``text`` in one line of at most ``limit`` characters, for a message: each run of blanks becomes one."""
    return " ".join(str(text).split())[:limit]


def error_reason(error: BaseException, limit: int = 200) -> str:
    """Why it failed, in one line: what the operating system says, or else the text of the error."""
    return getattr(error, "strerror", None) or one_line(error, limit)
