"""A driver on a machine: has learner ranks over the nodes of a cluster, and says what becomes of them, a JSON a line:
``python ranks_driver.py ADDRESS POLICY FOLDER STEP...``; a STEP is "step", "save" or "restore".
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from commands import say
from learners import PROBE, config, make_batch

from overlap.config.fields import ClusterConfig
from overlap.core.errors import OverlapError
from overlap.learner.learner import ProcessLearner
from overlap.run.parts import PartFactory
from overlap.run.run_inputs import RunInputs
from overlap.run.seating import seat

CFG = config(ranks=2, zero_stage=2)


def digest(info: Any) -> str:
    """Of published weights."""
    with open(info["path"], "rb") as memory:
        return hashlib.sha256(memory.read(info["size"])).hexdigest()


async def play(learner: ProcessLearner, folder: Path, steps: list[str]) -> None:
    """Take these steps, and say what comes of each."""
    for step in steps:
        if step == "step":
            report = await learner.step(make_batch(learner._version))
            update = await learner.publish(report.version)
            figures = {name: report.metrics[name] for name in ("loss", "grad_norm")}
            probe = await learner.logprobs(PROBE)
            say("step", version=report.version, probe=probe, weights=digest(update.info), **figures)
            await learner.retire(update)
        elif step == "save":
            say("save", version=await learner.save(folder, kind="state"))
        else:
            await learner.restore(folder)
            say("restore", version=learner._version)


async def main(address: str, policy: Path, folder: Path, steps: list[str], scratch: Path) -> None:
    cfg = replace(CFG, cluster=ClusterConfig(address), run=replace(CFG.run, dir=str(folder.parent)))
    placed = await asyncio.to_thread(seat, cfg, engine=False)
    say("placed", lines=dict(placed.lines()))
    prepared = RunInputs(cfg, None, policy, None, (), (), {}, None)  # type: ignore[arg-type]
    factory = PartFactory(prepared, placed.placement, scratch, scratch / "log", lambda line: say("told", line=line))
    learner = factory.learner()
    try:
        await learner.start()
        say("began")
        await play(learner, folder, steps)
    except OverlapError as error:
        say("failed", error=str(error), log=(scratch / "log").read_text()[-2000:])
    finally:
        await learner.close()
    say("closed")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:], Path(made)))
