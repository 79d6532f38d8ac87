"""A run on the fakes in a process of its own, for ``fakes.py``: ``overlap.train`` with all that it writes and starts.

It says so when training begins, notes each batch that is learned in a journal, and may kill itself at the n-th file
operation in its run directory.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any, ClassVar, Literal

from fake_parts import FakeGenerator, FakeLearner, FakeVerifier, fake_prompts

import overlap.generate.client
import overlap.learner.learner
import overlap.verify.verifier
from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.core import Batch, Group, Scored, StepReport
from overlap.core.aio import shielded_thread
from overlap.core.errors import LearnerDiedError
from overlap.process.atomic import partial_path, replace, sync
from overlap.run import restarts, training
from overlap.run.run_inputs import RunInputs

SMALL = ["rollout.groups_per_step=4", "rollout.samples_per_group=4", "run.eval_samples=0", "data.drop_solved=1"]
OPERATIONS = {"open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.truncate", "shutil.rmtree"}


def some_ms(rng: random.Random) -> float:
    return rng.expovariate(1 / 0.004)


class Learner(FakeLearner):
    """Writes what it saves as the real one does, and a line into the journal for each batch."""

    deaths: ClassVar[list[int]] = []
    """After how many steps each of them dies; those without a number live."""

    def __init__(self, cfg: Config, journal: Path) -> None:
        super().__init__(seconds=some_ms)
        self._cfg, self._journal = cfg, journal
        self._left = self.deaths.pop() if self.deaths else -1

    async def step(self, batch: Batch) -> StepReport:
        report = await super().step(batch)
        self._left -= 1
        if not self._left:
            raise LearnerDiedError("learner rank 0 was killed")
        groups = sorted((*batch.groups, *batch.dropped), key=lambda group: group.id)
        entry = {
            "step": batch.step,
            "version": batch.version,
            "groups": [group.id for group in groups],
            "prompts": [group.prompt.id for group in groups],
            "digest": hashlib.sha256(repr([_essence(group) for group in groups]).encode()).hexdigest(),
        }
        fd = os.open(self._journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(fd, json.dumps(entry).encode() + b"\n")
        os.close(fd)
        return report

    async def save(self, path: Path, *, kind: Literal["policy", "state"]) -> int:
        partial = partial_path(path)
        version = await super().save(partial, kind=kind)
        learn = self._cfg.learn
        state = {"version": version, "updates": version, "ranks": learn.ranks, "zero_stage": learn.zero_stage}
        await shielded_thread((partial / "learner.json").write_text, json.dumps(state | {"dtype": self._cfg.dtype}))
        await shielded_thread(sync, partial)
        await shielded_thread(replace, partial, path)
        return version


def _essence(group: Group) -> tuple[Any, ...]:
    """All of it that training depends on, but the times, and the versions of its tokens."""
    return group.id, group.prompt, [_sample(s) for s in group.samples], group.advantages, group.dropped


def _sample(scored: Scored) -> tuple[Any, ...]:
    t = scored.trajectory
    return scored.id, t.token_ids, t.logprobs, t.text, t.finish, scored.reward, scored.failure


class Tokenizer:
    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


def put_fakes(journal: Path) -> None:
    """In the place of engine, verifier, learner, policy and data."""
    stdout = os.dup(1)  # the run's own goes into its log

    def prepare(cfg: Config, task: Any, scratch: Path, output: Any) -> RunInputs:
        policy = scratch / "policy"
        policy.mkdir(exist_ok=True)
        (policy / "config.json").write_text("{}")
        return RunInputs(cfg, task, policy, Tokenizer(), tuple(fake_prompts(31)), ())

    class Generator(FakeGenerator):
        async def start(self) -> None:
            os.write(stdout, b"training\n")

    def generator(cfg: Config, *args: Any, **kwargs: Any) -> FakeGenerator:
        return Generator(seed=cfg.run.seed, seconds=some_ms, slots=16, truncated=0.1)

    def verifier(cfg: Config, *args: Any, **kwargs: Any) -> FakeVerifier:
        return FakeVerifier(seed=cfg.run.seed, seconds=some_ms, workers=6, failed=0.05)

    training.prepare = prepare
    overlap.generate.client.EngineClient = generator  # type: ignore[assignment, misc]
    overlap.verify.verifier.SandboxVerifier = verifier  # type: ignore[assignment, misc]
    overlap.learner.learner.ProcessLearner = lambda cfg, *args, **kwargs: Learner(cfg, journal)  # type: ignore[assignment, misc]


def die_at(operation: int, folder: str) -> None:
    """SIGKILL to ourselves right before the n-th operation on a file in ``folder`` that may change something."""
    left = operation

    def audit(event: str, args: tuple[Any, ...]) -> None:
        nonlocal left
        if event in OPERATIONS and str(args[0]).startswith(folder) and not (event == "open" and args[1] == "r"):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(audit)


def main() -> None:
    asked = json.loads(sys.argv[1])
    cfg = load_config(None, [*SMALL, *asked["overrides"]])
    put_fakes(Path(asked["journal"]))
    restarts.PAUSE_S, Learner.deaths = 0.01, asked["deaths"]
    importlib.import_module("tensorboard.summary.writer.record_writer")  # a second, which no kill shall be spent on
    if asked["kill_at"]:
        die_at(asked["kill_at"], cfg.run.dir)
    training.run_training(cfg, resume=asked["resume"])


if __name__ == "__main__":
    main()
