"""``overlap cluster up | status | down``: a cluster of a few machines, started by hand."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

from overlap.cluster.by_hand import (
    await_node,
    call_roll,
    end_node,
    find_token,
    own_addresses,
    read_node_state,
    start_node,
    token_path,
)
from overlap.cluster.nodes import code_digest


def up_command(args: argparse.Namespace) -> Iterator[str]:
    """Start a node; yield what a person does next."""
    state = start_node(args.address, args.join, args.token_file, args.words, loopback=args.loopback)
    try:
        if state.head:
            yield from _head_lines(state.address)
        else:
            yield f"this machine has joined the cluster at {state.address}; `overlap cluster down` stops its node"
        if args.block:
            await_node(state)
    finally:
        if args.block:
            end_node()


def _head_lines(address: str) -> Iterator[str]:
    token, host = shlex.quote(str(token_path())), address.rpartition(":")[0]
    others = [other for other in own_addresses() if other != host]
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
    state = read_node_state()
    address = args.address or (state.address if state else "")
    authenticated, nodes = call_roll("address", address, find_token(args.token_file, address))
    asks = "requires a token" if authenticated else "requires NO token: anyone who can connect can run code on it"
    alive = [(cores, gpus) for _, lives, cores, gpus, *_ in nodes if lives]
    cores, gpus = (sum(each) for each in zip((0, 0), *alive, strict=True))
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
    if (state := end_node()) is None:
        yield "no node was started here by `overlap cluster up`"
    elif state.head:
        yield f"the head at {state.address} has stopped; run `overlap cluster down` on the other machines, too"
    else:
        yield f"the node of the cluster at {state.address} has stopped"
