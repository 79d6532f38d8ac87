"""Helpers of several benchmarks. Importing this module makes the modules of ``tests/support`` importable, too."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Final

from overlap.record.metrics import read_steps

ROOT: Final = Path(__file__).resolve().parents[2]
SUPPORT: Final = ROOT / "tests" / "support"
CONFIG: Final = "recipes/code_rl/configs/cpu_smollm2.yaml"
sys.path.append(str(SUPPORT))


def argument_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser whose ``--help`` shows the module's docstring with its lines as they are."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def rows_of(run: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's ``metrics.jsonl``."""
    return read_steps(run / "metrics.jsonl")
