"""The command ``overlap export-samples``: the kept samples of a run as files of other programs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from overlap.analysis.run_data import load_run
from overlap.analysis.sample_exports import EXPORTS
from overlap.atomic import guarded, made_whole
from overlap.errors import ConfigError
from overlap.record.ownership import check_out


def export_samples(args: argparse.Namespace) -> Iterator[str]:
    """Write a folder, which appears whole or not at all. Raises ConfigError, RunDirError."""
    check_out(args.out, folder=True)
    samples = load_run(args.run).samples
    if not len(samples):
        raise ConfigError("RUN", args.run, "has kept no samples; train with run.samples=some or all")
    with made_whole(args.out) as partial:
        with guarded(args.out):
            partial.mkdir()
        EXPORTS[args.form](samples, partial)
    yield f"{args.out}: {len(samples)} samples for {args.form}"
