"""Several processes of one script, as ranks are started: each writes what it finds into a file of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def run_ranks(world: int, script: str, *given: Any, folder: Path, environment: Mapping[str, str]) -> list[Any]:
    """What each rank of ``python script GIVEN... MEET`` tells by ``tell``; ``folder`` is theirs alone. Raises
    AssertionError with a rank's output where one fails.
    """
    ranks = []
    try:
        for number in range(world):
            own = {"RANK": str(number), "LOCAL_RANK": str(number), "LOCAL_SIZE": str(world), "WORLD_SIZE": str(world)}
            with (folder / f"log-{number}").open("w") as log:
                command = [sys.executable, script, *map(str, given), str(folder / "meet")]
                mine = os.environ | environment | own
                ranks.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=mine))
        for number, process in enumerate(ranks):
            assert process.wait(500) == 0, (folder / f"log-{number}").read_text()[-6000:]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return [json.loads((folder / f"meet-{number}").read_text()) for number in range(world)]


def tell(meet: Path, found: Any) -> None:
    """As the rank that this process is."""
    meet.with_name(f"meet-{os.environ['RANK']}").write_text(json.dumps(found))
