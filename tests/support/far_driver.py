"""A driver on a machine: has a process on another one, and says what happens: ``python far_driver.py ADDRESS NODE``."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from commands import say
from places import ROOT, SUPPORT

from overlap.cluster.fleet import RayFleet, joined
from overlap.cluster.ray_cluster import RayCluster
from overlap.cluster.sites import FarSite
from overlap.config.fields import Config
from overlap.errors import EngineError
from overlap.placement.seats import EngineSeat
from overlap.process.child_processes import ChildProcesses

FOUND = {"PYTHONPATH": f"{ROOT}{os.pathsep}{SUPPORT}"}


async def main(address: str, node: str, calls: int, folder: Path) -> None:
    fleet = RayFleet(Config(), RayCluster(address), (), print)
    async with joined(fleet.cluster):
        (name,) = [name for name in await fleet.living() if fleet.places[name].address == node]
        life, seat = ChildProcesses("engine", EngineError, folder, folder / "log"), EngineSeat(0, 0, node=name)
        peer = await FarSite(fleet).start(life, "the engine process", "far_child", FOUND, seat)
    try:
        found = (await peer.call("state"))["environment"]
        say("began", folder=found["TMPDIR"], rays=[name for name in found if name.startswith("RAY_")])
        sent = os.urandom(20 << 20)
        say("echoed", same=await peer.call("echo", sent) == sent)
        for i in range(calls):
            assert await peer.call("add", i, 1) == i + 1
            say("added")
            await asyncio.sleep(0.1)
    except EngineError as error:
        say("failed", error=str(error))
    finally:
        await life.close()
        await peer.close()
    say("closed")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(made)))
