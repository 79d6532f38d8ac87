"""``overlap cluster up | status | down``: a cluster of a few machines, started by hand."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator

_MORE = """\
Run `overlap cluster up` on one machine: it prints the command for the others. Run `overlap cluster down` on each of
them at the end. A cluster requires a token and has no dashboard. Options after -- go to `ray start`: -- --num-gpus=2
Exit codes: 0 done, 1 Ray did not start, stop or answer, 2 bad input.
"""


def add_cluster(commands) -> None:  # type: ignore[no-untyped-def]
    """Add the parser of ``overlap cluster``."""
    text = "start, show or stop a cluster of machines (for cluster.address) by hand"
    layout = argparse.RawDescriptionHelpFormatter
    cluster = commands.add_parser("cluster", help=text, description=text, epilog=_MORE, formatter_class=layout)
    kinds = cluster.add_subparsers(required=True, metavar="up|status|down")

    def add(name: str, run: Callable[[argparse.Namespace], Iterator[str]], text: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = kinds.add_parser(
            name, help=text, description=text, epilog=_MORE, formatter_class=layout
        )
        parser.set_defaults(run_command=run)
        return parser

    up = add(
        "up", _up, "start a node on this machine: the head of a new cluster or, with --join, a further node of one"
    )
    text = "address by which other machines reach this one (default: its only one), and port of the head (6379)"
    up.add_argument("--address", default="", metavar="HOST[:PORT]", help=text)
    up.add_argument("--join", default="", metavar="HOST:PORT", help="address of the head of the cluster to join")
    text = "file with the cluster's token (default: RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH; on the head a new token)"
    up.add_argument("--token-file", default="", metavar="FILE", help=text)
    up.add_argument("--loopback", action="store_true", help="listen on 127.0.0.1: a cluster of this machine alone")
    up.add_argument("--block", action="store_true", help="run until a signal comes, then stop the node")
    up.add_argument("words", nargs="*", metavar="-- --NAME=VALUE", help="options of `ray start`")
    status = add("status", _status, "print the nodes of a cluster, and whether it requires a token")
    text = "address of the head (default: the head on this machine)"
    status.add_argument("address", nargs="?", default="", metavar="HOST:PORT", help=text)
    status.add_argument("--token-file", default="", metavar="FILE", help="file with the cluster's token")
    add("down", _down, "stop the node that `up` started on this machine, with all its processes")


def _up(args: argparse.Namespace) -> Iterator[str]:
    from overlap.cluster.by_hand import await_node, end_node, start_node

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
    from overlap.cluster.by_hand import own_addresses, token_path

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


def _status(args: argparse.Namespace) -> Iterator[str]:
    from overlap.cluster.by_hand import call_roll, find_token, read_node_state
    from overlap.cluster.nodes import code_digest

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


def _down(args: argparse.Namespace) -> Iterator[str]:
    from overlap.cluster.by_hand import end_node

    if (state := end_node()) is None:
        yield "no node was started here by `overlap cluster up`"
    elif state.head:
        yield f"the head at {state.address} has stopped; run `overlap cluster down` on the other machines, too"
    else:
        yield f"the node of the cluster at {state.address} has stopped"
