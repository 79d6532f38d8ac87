"""``overlap show``: why a sample got its reward, on the terminal."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from overlap.core.errors import ConfigError, count_of
from overlap.inspect.run_data import open_samples
from overlap.inspect.sample_export import write_samples
from overlap.inspect.sample_filter import SampleFilter
from overlap.inspect.show import RunShown
from overlap.inspect.terminal import drawn
from overlap.process.atomic import is_stdout

_ID = re.compile(r"(?:g(-?\d+))?s?(\d+)")


def show_command(args: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of ``overlap show``."""
    group, sample = args.group, None
    if args.sample:
        found = _ID.fullmatch(args.sample)
        if found is None:
            raise ConfigError("--sample", args.sample, "names no sample; write g17s3, or 3 with --group 17")
        named, number = found.groups()
        if named is not None and group not in (None, int(named)):
            raise ConfigError(
                "--sample", args.sample, f"is of another group than --group {group}; leave one of them out"
            )
        group, sample = int(named) if named is not None else group, int(number)
        if group is None:
            raise ConfigError("--sample", args.sample, f"needs its group: write g17s{number}, or --group 17 as well")
    if args.diff and group is None and not (args.failed or args.problem):
        raise ConfigError(
            "--diff", True, "shows the failing tests of samples: add --failed, --group 17 or --problem ID"
        )
    if args.eval and args.dropped:
        raise ConfigError("--dropped", True, "is of training, and no evaluation teaches: leave it or --eval out")
    only = SampleFilter(
        split="heldout" if args.eval else "",
        step=args.step,
        group=group,
        sample=sample,
        problem=args.problem,
        failed=args.failed,
        dropped=args.dropped,
    )
    run = open_samples(args.run)
    shown = RunShown(run, args.run, only, diff=args.diff, limit=args.limit)
    if args.out is None:
        yield from drawn(shown.parts())
        return
    heads = shown.found()
    write_samples(run.samples, heads, args.out)
    yield f"{'standard output' if is_stdout(args.out) else args.out}: {count_of(len(heads), 'sample')}"
