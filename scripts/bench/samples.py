"""CPU time that the driver takes for a step's samples: choosing groups, writing their rows.

For each shape (groups x samples x tokens of a response, four characters a token, 20 tests a sample): milliseconds of
CPU of the thread that writes, and KiB written, medians over the steps; first with run.samples=some, then with all.
Tokens and log-probs of both sides are written. A prompt's text costs nothing here; ``--policy`` decodes it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

from _shared import argument_parser

from overlap.core import Prompt
from overlap.prepare.run_inputs import load_tokenizer
from overlap.record.rundir import RunDir
from overlap.record.sample_writer import SampleWriter

SHAPES = ((8, 8, 200), (32, 8, 1024), (64, 16, 4096), (64, 16, 16_384))
CHARACTERS, TESTS = 4, 20


def measured(folder: Path, shape: tuple[int, int, int], kept: Literal["some", "all"], steps: int, decode: Any) -> str:
    """A line of the table."""
    from made_run import RunMaker, RunShape, program_of, text_of  # of tests/support

    groups, samples, tokens = shape
    length = {"tokens": (tokens, tokens), "padding": CHARACTERS * tokens, "tests": TESTS}
    response = (f"model.response_tokens={2 * tokens}", f"learn.micro_batch_tokens={4 * tokens + 4096}")
    made = RunShape(steps, groups, samples, problems=groups, kept=kept, overrides=response, **length)
    maker = RunMaker(folder, made)
    writer = SampleWriter(maker.run, decode or text_of, program_of, kept)
    spent, written = [], []
    for step in range(1, steps + 1):
        result = maker.result_of(step)
        learner = {s.id: (s.trajectory.logprobs,) for s in result.batch.samples}
        before, began = _size(maker.run), time.thread_time()
        writer.step(result.batch, learner)
        spent.append(1000 * (time.thread_time() - began))
        written.append((_size(maker.run) - before) / 1024)
    maker.run.close()
    name = f"{groups} x {samples} x {tokens}"
    return (
        f"{name:20s} {kept:5s} {statistics.median(spent):10.1f} {max(spent):10.1f} {statistics.median(written):10.0f}"
    )


def _size(run: RunDir) -> int:
    return sum(path.stat().st_size for path in (run.trajectories, run.groups) if path.exists())


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--policy", type=Path, help="directory of a checkpoint whose tokenizer decodes the prompts")
    args = parser.parse_args()
    decode = None
    if args.policy:
        tokenizer = load_tokenizer(args.policy)

        def decode(prompt: Prompt) -> str:
            return str(tokenizer.decode(list(prompt.token_ids)))

    print(f"{'shape':20s} {'kept':5s} {'ms of CPU':>10s} {'most':>10s} {'KiB':>10s}")
    for shape in SHAPES:
        for kept in ("some", "all") if shape[2] <= 1024 else ("some",):
            with tempfile.TemporaryDirectory() as folder:
                print(measured(Path(folder) / "run", shape, kept, args.steps, decode), flush=True)


if __name__ == "__main__":
    main()
