"""Weights to machines made of namespaces: whole tensors beside differences (as root)

States follow each other as in training: float32 weights that move by the learning rate, up or down at random, which is
as far as Adam goes, rounded to bfloat16; or they come from files. Whole is what a node gets that has none of them. The
process in the engine's place reads each state there, and has to find the driver's, bit for bit.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from _shared import ROOT, SUPPORT, argument_parser

from overlap.config.fields import Config
from overlap.errors import EngineError

SPARE = 64
"""Bytes at the end, so that weights of another size, which are no successor of those before, have the same content."""


def states(lr: float, rounds: int) -> Iterator[Any]:
    """Arrays of bytes: all weights of the default policy, before each of so many steps and after the last."""
    import torch
    from safetensors.torch import load_file

    from overlap.policy.resolve import resolve_policy

    path = resolve_policy("smollm2-135m-instruct") / "model.safetensors"
    weights = torch.cat([tensor.float().flatten() for tensor in load_file(path).values()])
    torch.manual_seed(0)
    for _ in range(rounds + 1):
        yield weights.bfloat16().view(torch.uint8).numpy()
        weights += torch.randint(2, weights.shape, dtype=torch.int8).mul_(2).sub_(1) * lr


def sent() -> int:
    """Bytes that have left this machine."""
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if "eth0:" in line)
    return int(line.partition(":")[2].split()[8])


async def drive(address: str, nodes: int, rounds: int, lr: float, files: list[str]) -> dict[str, Any]:
    """Medians of the seconds until so many nodes have a state, and of MB on the wire, in both ways."""
    import numpy

    from overlap.cluster.fleet import RayFleet
    from overlap.cluster.ray_cluster import RayCluster
    from overlap.cluster.sites import FarSite
    from overlap.placement.seats import EngineSeat
    from overlap.process.child_processes import ChildProcesses

    found = [numpy.fromfile(file, numpy.uint8) for file in files] or list(states(lr, rounds))
    size = len(found[0])
    digests = {length: [_digest(state, length) for state in found] for length in (size, size + SPARE)}
    took: dict[str, list[tuple[float, int]]] = {"changed": [], "whole": []}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        shared = Path(stack.enter_context(tempfile.TemporaryDirectory()))  # where every machine finds it
        (shared / "config.json").write_text("{}")
        memory = numpy.memmap(path := folder / "weights", numpy.uint8, "w+", shape=size + SPARE)
        fleet = RayFleet(Config(), RayCluster(address), (), print)
        stack.push_async_callback(fleet.cluster.leave)
        await fleet.cluster.enter()
        there = [name for name in await fleet.living() if not fleet.places[name].here]
        environment, sites = {"PYTHONPATH": f"{ROOT}{os.pathsep}{SUPPORT}"}, []
        for index, name in enumerate(there[:nodes]):
            life, site = ChildProcesses(f"engine-{index}", EngineError, folder, folder / "log"), FarSite(fleet, shared)
            peer = await site.start(life, "the engine", "far_child", environment, EngineSeat(index, 0, node=name))
            stack.push_async_callback(peer.close)
            stack.push_async_callback(life.close)
            sites.append((life, site, peer))

        async def bring(life: Any, site: Any, peer: Any, version: int, length: int) -> float:
            async with site.brought(life, {"path": str(path), "size": length}, version) as there:
                done = time.monotonic()
                assert await peer.call("digest", there["path"]) == digests[length][version]
            return done

        async def round_of(version: int, length: int) -> tuple[float, int]:
            memory[:size] = found[version]
            began, before = time.monotonic(), sent()
            done = await asyncio.gather(*(bring(*one, version, length) for one in sites))
            return max(done) - began, sent() - before

        await round_of(0, size)
        for version in range(1, len(found)):
            took["changed"].append(await round_of(version, size))
        for version in range(1, len(found)):
            took["whole"].append(await round_of(version, size + SPARE * (version % 2)))
    said = {way: [statistics.median(figure) for figure in zip(*each, strict=True)] for way, each in took.items()}
    changed = statistics.mean(float(numpy.mean(a.view("u2") != b.view("u2"))) for a, b in itertools.pairwise(found))
    return said | {"share": changed, "size": size}


def _digest(state: Any, length: int) -> bytes:
    whole = hashlib.sha256(state)
    whole.update(bytes(length - len(state)))
    return whole.digest()


def over_machines(args: Any) -> int:
    """Print the table. Says why where there can be no machines."""
    from machines import Machines, why_not

    if why := why_not():
        print(f"not over nodes: {why}")
        return 0
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{Path(__file__).parent}"
    print(f"{'Mbit/s':>6s} {'nodes':>5s} {'changed words':>13s} {'whole':>18s} {'differences':>18s} {'faster':>7s}")
    with Machines(1 + max(args.nodes)) as machines:
        for megabits in args.megabits:
            machines.pace(megabits)
            for nodes in args.nodes:
                given = ["--address", machines.address, "--nodes", str(nodes), "--rounds", str(args.rounds)]
                given += ["--lr", str(args.lr), "--states", *args.states]
                said = machines.head.run([sys.executable, __file__, *given], 600.0)
                done = json.loads(said.strip().splitlines()[-1])
                (whole_s, whole), (changed_s, changed) = done["whole"], done["changed"]
                both = f"{whole_s:6.2f} s {whole / 1e6:6.0f} MB {changed_s:6.2f} s {changed / 1e6:6.1f} MB"
                print(f"{megabits:6d} {nodes:5d} {done['share']:13.2%} {both} {whole_s / changed_s:6.1f}x", flush=True)
    return 0


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("--address", default="", help="of the cluster, on a machine")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2], help="other machines (1 2)")
    parser.add_argument(
        "--megabits", type=int, nargs="+", default=[1000, 100], help="of each machine's link (1000 100)"
    )
    parser.add_argument("--rounds", type=int, default=4, help="updates, of which the median is told (4)")
    parser.add_argument("--lr", type=float, default=1e-6, help="learning rate (1e-6)")
    parser.add_argument("--states", nargs="*", default=[], help="files of states, in place of those that are made")
    args = parser.parse_args()
    if not args.address:
        return over_machines(args)
    print(json.dumps(asyncio.run(drive(args.address, args.nodes[0], args.rounds, args.lr, args.states))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
