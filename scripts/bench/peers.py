"""This project beside TRL, and its sandbox beside other graders, each in an environment of its own.

    bash scripts/bench.sh peers trainers    seconds a step of the default run and of TRL's GRPO, with the same policy,
                                            problems, samples a step and learning rate
    bash scripts/bench.sh peers graders     right verdicts, hacks paid, CPU and programs a second of verl's prime_code,
                                            LiveCodeBench's grader (as lighteval has it), evalplus's and ours

The environments are made in ``--folder``: the package beside the torch, transformers and datasets of this one. All
take turns, in one run on one machine; figures are medians. What is printed is also in ``--folder``/NAME.json, and
drawn in ``--folder``/NAME.svg.

Trainers: each round of a side is a program of its own, ``--steps`` steps after ``--warm-up`` others. TRL samples by
its colocated vLLM, with the stop strings of the default run; its gradient checkpointing is off. Exit code 1 where a
step of the default run is not 4 times as fast as TRL's with our verifier.

Graders: `sandbox check-reward` calls each with its labelled programs and the zoo, and with those of ``--samples``;
what a grader has no form for is counted as "no answer". CPU and pace are those of a small right function.
"""

from __future__ import annotations

import sys
from pathlib import Path

from _peer_steps import compare_trainers
from _peer_verdicts import compare_graders
from _shared import argument_parser


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("what", choices=("trainers", "graders"))
    parser.add_argument("--folder", type=Path, default=Path("runs/peers"), help="environments and logs (runs/peers)")
    parser.add_argument("--steps", type=int, default=5, help="trainers: steps of a round that count (5)")
    parser.add_argument("--warm-up", type=int, default=2, help="trainers: steps before them (2)")
    parser.add_argument("--rounds", type=int, default=2, help="of each side (2)")
    parser.add_argument("--groups", type=int, help="trainers: prompts a step (as configured), of 8 samples each")
    parser.add_argument(
        "--again",
        type=int,
        nargs="+",
        default=[],
        choices=range(4),
        help="trainers: run these rows of the table anew (0 to 3)",
    )
    parser.add_argument("--samples", type=Path, help="graders: more labelled programs, as for `sandbox check-reward`")
    options = parser.parse_args()
    options.folder = options.folder.absolute()
    options.folder.mkdir(parents=True, exist_ok=True)
    return {"trainers": compare_trainers, "graders": compare_graders}[options.what](options)


if __name__ == "__main__":
    sys.exit(main())
