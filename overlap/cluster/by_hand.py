"""A node of a Ray cluster on this machine, started and ended by the user: ``ray start``, with required settings.

Every cluster started here asks for a token, has no dashboard, and lets a node that was cut off in again. Whatever
belongs to a node has its folder in the environment, so that it is found and ended whatever became of who started it.
A user has one node to a machine, whose state is in ``<state folder>/overlap/cluster/<host>/{node.json,token}``.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from overlap.cluster.access import (
    AUTH,
    HEALTH,
    PORT,
    NodeState,
    admitted,
    check_address,
    check_port_free,
    find_token,
    host_and_port,
    own_addresses,
    read_node_state,
    token_path,
)
from overlap.cluster.nodes import code_digest
from overlap.core.errors import ConfigError, OverlapError, one_line
from overlap.process import process_tree
from overlap.process.atomic import guarded, write_atomic
from overlap.process.process_tree import Pid
from overlap.process.run_environment import child_environment
from overlap.process.scratch import temporary_directory
from sandbox.kernel.clear import remove_tree
from sandbox.kernel.orphan_cleanup import remove_run_directory

START_S, ASK_S, KILL_S = 90.0, 30.0, 5.0
"""Time for a node to start, for a head to answer, and for the kernel to end a node's processes."""
MARK = "OVERLAP_CLUSTER"
LABEL = "overlap-code"
"""Label of a node that says which code of ours is installed there."""
_OURS = ("head", "address", "port", "node-ip-address", "temp-dir", "include-dashboard", "labels", "block")


def node_processes(state: NodeState, name: str = "") -> list[Pid]:
    """Processes of a node that are alive, or those called ``name``; Ray calls the node itself "raylet"."""
    found = [process for process in process_tree.marked(f"{MARK}={state.place}") if process_tree.alive(process)]
    return [process for process in found if process_tree.read_proc(process.pid, "comm").startswith(name.encode())]


def start_node(address: str, join: str, token_file: str, words: Sequence[str], *, loopback: bool) -> NodeState:
    """Start a node on this machine, which has this address ("": the one that others reach): of the cluster whose head
    is at ``join``, or else the head of a new one. ``words`` go to ``ray start``. Raises ConfigError, and OverlapError
    where Ray does not start: nothing is left.
    """
    if taken := [word for word in words if word.removeprefix("--").partition("=")[0] in _OURS]:
        raise ConfigError("ray start", taken[0], "is set by `overlap cluster up`: leave it out")
    former = read_node_state()
    if former is not None and node_processes(former, "raylet"):
        raise ConfigError("cluster", former.address, "a node runs here already: `overlap cluster down` stops it")
    state, own, token = _planned(address, join, token_file, loopback)
    if former is not None:
        end_node(former)  # Ray has ended it, or the machine was started anew
    if state.head:
        check_port_free("--address", host_and_port("--address", state.address)[1])
    with ExitStack() as stack:
        stack.callback(end_node, state)
        write_node_state(state, token)  # first: whatever comes between, the state names what there is
        _ray_start(state, own, words)
        stack.pop_all()
    return state


def write_node_state(state: NodeState, token: str) -> None:
    """Write what ``read_node_state`` reads, and the token. Raises RunDirError."""
    path = token_path()
    with guarded(path):
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.touch(0o600, exist_ok=False)
        path.write_text(token)
    write_atomic(path.with_name("node.json"), json.dumps(state))


def call_roll(field: str, address: str, token: str) -> tuple[bool, list[list[Any]]]:
    """Return true where the cluster asks for a token, and its nodes: name, whether it is alive, cores, GPUs, version of
    our code ("" where `up` has not started it), and why it died. Raises ConfigError where no head is there, or one that
    needs another token, and OverlapError where it does not answer. Asks in a process of its own: Ray may hang.
    """
    check_address(field, address)
    command = [sys.executable, "-c", "from overlap.cluster import by_hand; by_hand._ask_head()", address]
    env = child_environment(RAY_AUTH_MODE="token" if token else "disabled", RAY_AUTH_TOKEN=token)
    try:
        done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASK_S)
        mode, rows = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        raise OverlapError(f"the cluster's head at {address} does not answer within {ASK_S:g} s") from error
    if not mode:
        way_out = f"requires {'another' if token else 'a'} token: --token-file with a copy of the file that "
        raise ConfigError(field, address, f"{way_out}`overlap cluster up` printed there")
    return mode == "token", rows


def _ask_head() -> None:
    """Print, as JSON, in which mode of Ray's the head lets us in, and its nodes."""
    mode, client = admitted(sys.argv[1])
    rows = []
    for node in client.get_all_node_info().values() if mode else ():
        name, has = f"{node.node_manager_address}-{node.node_id.hex()[:8]}", node.resources_total
        counted = [int(has.get("CPU", 0)), int(has.get("GPU", 0))]
        why = node.death_info.reason_message
        rows.append([name, node.state == node.ALIVE, *counted, node.labels.get(LABEL, ""), why])
    print(json.dumps([mode, rows]))


def _planned(address: str, join: str, token_file: str, loopback: bool) -> tuple[NodeState, list[str], str]:
    """Plan a node: its state, the addresses for ``ray start``, and the token. Raises ConfigError."""
    host, port = host_and_port("--address", address, PORT) if address else ("", PORT)
    ours = ["127.0.0.1"] if loopback else own_addresses()
    if not host and not join and len(ours) == 1:
        host = ours[0]
    if host not in ours and (host or not join):  # a node joins by its address on the route to the head
        way_out = f"name the one that others reach ({', '.join(ours)}), or add --loopback if none shall"
        raise ConfigError("--address", address, way_out)
    words, head = [f"--node-ip-address={host}"] if host else [], join or f"{host}:{port}"
    token = find_token(token_file, head)
    if join and not call_roll("--join", join, token)[0]:
        raise ConfigError("--join", join, "lets everybody in, without a token: start its head by this command")
    words += [f"--address={join}"] if join else ["--head", f"--port={port}", "--include-dashboard=false"]
    place = temporary_directory() / f"ovc-{secrets.token_hex(4)}"
    return NodeState(head, not join, str(place)), words, token or secrets.token_hex(32)


def _ray_start(state: NodeState, own: Sequence[str], words: Sequence[str]) -> None:
    place, log = Path(state.place), Path(state.place, "ray", "start.log")
    for folder, mode in ((place, 0o711), (place / "ray", 0o700), (place / "tmp", 0o711)):
        folder.mkdir(mode)  # others may go through, for as root the sandbox gives its programs uids of their own
    own = [*own, f"--temp-dir={place / 'ray'}", f"--labels={LABEL}={code_digest()}", "--disable-usage-stats"]
    known = {AUTH[0]: "token", AUTH[2]: str(token_path()), MARK: state.place, "TMPDIR": str(place / "tmp")}
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *own, *words]
    env, null = HEALTH | child_environment(RAY_USAGE_STATS_ENABLED="0", **known), subprocess.DEVNULL
    code = -1
    with log.open("wb") as out:  # and no terminal that is closed ends a node
        where: dict[str, Any] = {"stdin": null, "stdout": out, "stderr": out, "cwd": log.parent}
        with suppress(subprocess.TimeoutExpired):
            code = subprocess.run(command, env=env, timeout=START_S, start_new_session=True, **where).returncode
    if code:
        said = one_line(log.read_text(encoding="utf-8", errors="replace"))[-800:]
        if code == 2:  # it does not understand its words
            raise ConfigError("ray start", " ".join(words), said)
        how = f"did not end within {START_S:g} s" if code < 0 else f"failed (exit code {code})"
        raise OverlapError(f"`ray start` {how}; it said: {said or 'nothing'}")


def end_node(state: NodeState) -> None:
    """End a node that was started here, with all that it started, and forget it. Raises OverlapError where a process
    does not end.
    """
    if left := process_tree.kill_tree(node_processes(state), KILL_S, trackers=True):
        raise OverlapError(f"these processes of the node did not end: {', '.join(map(str, left))}; try again")
    for killed in Path(state.place, "tmp").glob("ovl-*"):  # what it left, with its cgroup
        remove_run_directory(str(killed))
    remove_tree(state.place)
    with suppress(OSError):
        for path in (token_path(), token_path().with_name("node.json")):
            path.unlink(missing_ok=True)
        os.removedirs(path.parent)  # as far up as nothing is in them
