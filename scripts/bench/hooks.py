"""CPU time that callbacks and trackers take of the driver, per step.

A step of a made run (8 x 8 samples) is recorded and told: first with metrics.jsonl alone, then with callbacks (one
that does nothing, one that is async), with TensorBoard, and with both. Prints ms of CPU of all threads of this process
above the first line, the median of the rounds and the most; samples are sent every tenth step, as in a run.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from _shared import argument_parser

from overlap import Callback
from overlap.config.load import load_config
from overlap.hooks.callback import CallbackRun, RunEvent, RunStarted, StepTaken
from overlap.hooks.checks import check_callbacks, named_trackers
from overlap.hooks.thread import CallbackThread
from overlap.hooks.trackers import Trackers
from overlap.pipeline.control import Control
from overlap.record.rundir import RunDir
from overlap.run.run_events import RunEvents

PAUSE_S = 0.02


class Noop(Callback):
    """Looks at a figure."""

    def on_step(self, run: CallbackRun, event: StepTaken) -> None:
        event.row.get("reward/mean")


class AsyncNoop:
    """The same, async."""

    async def on_step(self, run: CallbackRun, event: RunEvent) -> None:
        await asyncio.sleep(0)


def spent_ms(folder: Path, steps: int, hooks: list[Any], names: tuple[str, ...]) -> float:
    """Milliseconds of CPU per step, with the row written to metrics.jsonl."""
    from made_run import RunMaker, RunShape, text_of  # of tests/support

    maker = RunMaker(folder / "made", RunShape(steps=1, groups=8, samples=8))
    maker.write()
    row, result = maker.recorder.rows[-1], maker.result_of(1)
    cfg = load_config(None, [f"run.trackers=[{','.join(names)}]", f"run.dir={folder / 'run'}"])
    run = RunDir.create(cfg.run.dir, {})
    told: Any = CallbackRun(run.path, cfg, None, text_of)
    thread = CallbackThread(check_callbacks(hooks), told, print)
    trackers = Trackers(named_trackers(cfg), told, run.failures)
    events = RunEvents(thread, trackers, Control(), print)
    trackers.put(RunStarted(0, resumed=False))

    async def all_steps(first: int, count: int) -> None:
        for step in range(first, first + count):
            await asyncio.to_thread(run.step, {**row, "step": step})
            await events.tell(StepTaken(step, row, result.batch))
            await asyncio.sleep(PAUSE_S)

    asyncio.run(all_steps(1, 20))  # imports, files
    began = time.process_time()
    asyncio.run(all_steps(21, steps))
    spent = 1000 * (time.process_time() - began) / steps
    thread.close()
    trackers.close()
    run.close()
    assert not list(run.failures), list(run.failures)
    return spent


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    callbacks: list[Any] = [Noop(), AsyncNoop()]
    cases: dict[str, tuple[list[Any], tuple[str, ...]]] = {
        "metrics.jsonl alone": ([], ()),
        "callbacks": (callbacks, ()),
        "tensorboard": ([], ("tensorboard",)),
        "all": (callbacks, ("tensorboard",)),
    }
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(args.rounds):
        for name, (hooks, names) in cases.items():
            with tempfile.TemporaryDirectory() as folder:
                found[name].append(spent_ms(Path(folder), args.steps, hooks, names))
    base = statistics.median(found["metrics.jsonl alone"])
    print(f"{'':22s}{'ms a step':>10s}{'most':>8s}")
    for name, values in found.items():
        less = 0.0 if name == "metrics.jsonl alone" else base
        print(f"{name:22s}{statistics.median(values) - less:10.2f}{max(values) - less:8.2f}", flush=True)


if __name__ == "__main__":
    main()
