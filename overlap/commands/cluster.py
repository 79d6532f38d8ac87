"""``overlap cluster up | status | down``: a cluster of a few machines, started by hand."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

from overlap.cluster import access, by_hand
from overlap.cluster.nodes import code_digest
from overlap.core.errors import OverlapError
from overlap.process.process_tree import await_end


def up_command(args: argparse.Namespace) -> Iterator[str]:
    """Start a node; yield what a person does next. With ``--block`` wait until the node ends, and raise OverlapError
    then.
    """
    state = by_hand.start_node(args.address, args.join, args.token_file, args.words, loopback=args.loopback)
    try:
        if state.head:
            yield from _head_lines(state.address)
        else:
            yield f"this machine has joined the cluster at {state.address}; `overlap cluster down` stops its node"
        raylets = by_hand.node_processes(state, "raylet")
        while args.block and await_end(raylets, 3600.0):
            pass
        if args.block:
            raise OverlapError("the node has stopped by itself: its head may be gone")
    finally:
        if args.block:
            by_hand.end_node(state)


def _head_lines(address: str) -> Iterator[str]:
    token, host = shlex.quote(str(access.token_path())), address.rpartition(":")[0]
    others = [other for other in access.own_addresses() if other != host]
    yield f"the head of a cluster runs at {address}; its token is in {token}"
    if not host.startswith("127."):
        yield "run on each further machine, with the same version of this package:"
        yield f"    scp {host}:{token} cluster-token  # unless both machines share this file"
        yield f"    overlap cluster up --join {address} --token-file cluster-token"
    yield "train over it, from this machine:"
    yield f"    overlap train ... cluster.address={address}"
    if others:
        yield f"Ray listens on this machine's other addresses too, {', '.join(others)}: block them from outside"


def status_command(args: argparse.Namespace) -> Iterator[str]:
    """Yield a row for each node of a cluster."""
    state = access.read_node_state()
    address = args.address or (state.address if state else "")
    authenticated, nodes = by_hand.call_roll("address", address, access.find_token(args.token_file, address))
    asks = "requires a token" if authenticated else "requires NO token: anyone who can connect can run code on it"
    alive = [node for node in nodes if node[1]]
    cores, gpus = (sum(node[column] for node in alive) for column in (2, 3))
    yield f"cluster at {address}: {len(alive)} nodes, {cores} cores, {gpus} GPUs; {asks}"
    yield f"{'node':<26} {'state':<5} {'cores':>5} {'GPUs':>4}  version"
    for name, lives, cores, gpus, version, why in sorted(nodes, key=lambda node: (not node[1], node[0])):
        row = f"{name:<26} {'alive' if lives else 'dead':<5} {cores:>5} {gpus:>4}  {version or '?'}"
        if lives and version not in ("", code_digest()):
            row += ", not the one here: runs will refuse this node"
        yield f"{row}  ({why})" if why and not lives else row
    yield f"version here: {code_digest()}"


def down_command(args: argparse.Namespace) -> Iterator[str]:
    """Stop the node of this machine."""
    if (state := access.read_node_state()) is None:
        yield "no node was started here by `overlap cluster up`"
        return
    by_hand.end_node(state)
    if state.head:
        yield f"the head at {state.address} has stopped; run `overlap cluster down` on the other machines, too"
    else:
        yield f"the node of the cluster at {state.address} has stopped"
