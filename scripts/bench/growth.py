"""How the judge's own CPU time grows with the size of what a program gives it to read.

Each line is a text or value made to be as hard as possible, at doubling sizes up to --mib MiB (less where the judge
takes in less). The slope is a straight line's through the logarithms of the sizes and of the CPU seconds, 1 for what is
linear; a dash where fewer than two sizes take a tenth of a second. Exit code 1 where one is over --limit. The lines are
those of tests/support/floods.py, which the tests run at a small size.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable

from _shared import argument_parser
from floods import MIB, floods

from sandbox import ToolchainMissing

NOISE_S = 0.1
"""What takes less is a few copies of the text, and says more of the machine's memory than of growth."""


def slope(points: list[tuple[int, float]]) -> float:
    """Of the straight line through the logarithms, by least squares; nan where two points say nothing."""
    logs = [(math.log(size), math.log(seconds)) for size, seconds in points if seconds > NOISE_S]
    if len(logs) < 2:
        return math.nan
    middle_x, middle_y = (sum(column) / len(logs) for column in zip(*logs, strict=True))
    return float(sum((x - middle_x) * (y - middle_y) for x, y in logs) / sum((x - middle_x) ** 2 for x, _ in logs))


def seconds(work: Callable[[], object]) -> float:
    """CPU, the better of two."""
    took = []
    for _ in range(2):
        start = time.process_time()
        work()
        took.append(time.process_time() - start)
    return min(took)


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("--mib", type=float, default=16.0, help="the largest size")
    parser.add_argument("--sizes", type=int, default=6)
    parser.add_argument("--only", default="", help="lines that hold this text")
    parser.add_argument("--limit", type=float, default=1.2)
    options = parser.parse_args()
    over = 0
    for flood in floods():
        if options.only not in flood.name:
            continue
        largest = min(int(options.mib * MIB), flood.most)
        try:
            points = [(largest >> k, seconds(flood.make(largest >> k))) for k in reversed(range(options.sizes))]
        except ToolchainMissing as error:
            print(f"{flood.name:60}    -  {error}")
            continue
        found = slope(points)
        over += found > options.limit
        told = "   -" if math.isnan(found) else f"{found:4.2f}"
        print(f"{flood.name:60} {told}  {points[-1][1]:9.4f} s at {largest / MIB:.3g} MiB", flush=True)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
