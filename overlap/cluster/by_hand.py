"""A node of a Ray cluster on this machine, started and ended by a person: ``ray start``, with what we insist on.

Every cluster started here asks for a token, has no dashboard, and lets a node that was cut off in again. Whatever
belongs to a node has its mark in the environment, so that it is found and ended whatever became of who started it. No
Ray in here: it is a command.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from overlap.cluster.addresses import PORT, check_port_free, check_reached, host_and_port, node_address
from overlap.cluster.asking import LABEL, lets_everybody_in
from overlap.cluster.node_state import (
    MARK,
    NodeState,
    checked_token,
    forget,
    read_node_state,
    read_token,
    single_command,
    token_path,
    write_node_state,
)
from overlap.cluster.nodes import code_digest
from overlap.errors import ConfigError, OverlapError, one_line
from overlap.process import Pid, child_environment, identify, kill_tree, list_descendants, process_tree, read_proc

START_S = 90.0
RAYLET_S, REST_S, KILL_S = 8.0, 5.0, 5.0
"""What a node has to end in: Ray's own way, asked singly, killed."""
LOOK_S = 0.5
"""So often is looked whether a node still runs."""
HEALTH = {
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "60",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "120",
    "RAY_grpc_client_keepalive_time_ms": "5000",
    "RAY_grpc_client_keepalive_timeout_ms": "5000",
}
"""A node that is cut off for up to a minute is in again: our own looks move its work within seconds. Of a head that is
gone a run tells before Ray ends the process that asks.
"""
_RAY = [sys.executable, "-m", "ray.scripts.scripts"]
_OURS = (
    "--head",
    "--address",
    "--port",
    "--node-ip-address",
    "--temp-dir",
    "--include-dashboard",
    "--labels",
    "--block",
)
_MAIN = (b"raylet\n", b"gcs_server\n")
_PLACE_CHARS = 36
_TOLD_CHARS = 800


class NodeStartOptions(NamedTuple):
    """``address``: of this machine, "" for the one that others reach; ``join``: of the head, "" to be the head;
    ``words`` go to ``ray start``.
    """

    address: str = ""
    join: str = ""
    token_file: str = ""
    loopback: bool = False
    words: tuple[str, ...] = ()


def start_node(asked: NodeStartOptions) -> NodeState:
    """Start a node on this machine. Raises ConfigError, and OverlapError where Ray does not start: nothing is left."""
    _check_words(asked.words)
    with single_command():
        former = _former()
        state, token = _planned(asked, former)
        try:
            write_node_state(state, token)  # first: whatever comes between, ``end_node`` finds what there is
            _ray_start(state, asked.words)
        except BaseException:
            _end(state)
            raise
    return state


def end_node() -> NodeState | None:
    """End the node that was started here, with all that it started, and forget it; None where there is none. Raises
    OverlapError where a process does not end.
    """
    with single_command():
        if (state := read_node_state()) is not None:
            _end(state)
    return state


@contextmanager
def owned_node() -> Iterator[None]:
    """The node that was started here ends with the context."""
    try:
        yield
    finally:
        end_node()


def await_node(state: NodeState) -> NoReturn:
    """Wait until the node ends, for as long as it lives. Raises OverlapError then."""
    main = [process for process in state.processes() if read_proc(process.pid, "comm") in _MAIN]
    while main and all(process_tree.await_end([process], 0.0) for process in main):
        time.sleep(LOOK_S)
    raise OverlapError("the node has stopped by itself: its head may be gone")


def _check_words(words: Sequence[str]) -> None:
    for word in words:
        name = word.partition("=")[0]
        if not word.startswith("--"):
            raise ConfigError("ray start", word, "write its options as --name=value, behind --")
        if name in _OURS:
            raise ConfigError("ray start", word, f"{name} is set by `overlap cluster up`: leave it out")


def _former() -> tuple[str, str]:
    """Address and token of the cluster whose node has run here: what is left of it is ended. Raises ConfigError where
    it still runs.
    """
    state = read_node_state()
    if state is None:
        return "", ""
    if any(read_proc(process.pid, "comm") in _MAIN for process in state.processes()):
        what = "the head of a cluster" if state.head else "a node"
        raise ConfigError("cluster", state.address, f"{what} runs here already: `overlap cluster down` stops it")
    token = token_path().read_text(encoding="utf-8") if token_path().is_file() else ""
    _end(state)  # Ray has ended it, or the machine was started anew
    return state.address, token


def _planned(asked: NodeStartOptions, former: tuple[str, str]) -> tuple[NodeState, str]:
    place = _place()
    mark = secrets.token_hex(8)
    if asked.join:
        host, port = host_and_port("--join", asked.join)
        check_reached("--join", host, port)
        own = host_and_port("--address", asked.address, PORT)[0] if asked.address else ""
        node = node_address(own, loopback=asked.loopback, towards=(host, port))
        address = f"{host}:{port}"
        token = _token(asked.token_file) or (former[1] if former[0] == address else "")
        if not token:
            way_out = "is required: copy the token of the head, whose path `overlap cluster up` printed there"
            raise ConfigError("--token-file", "", way_out)
        if lets_everybody_in(address):
            raise ConfigError("--join", address, "lets everybody in, without a token: start its head by this command")
        return NodeState(address, node, False, mark, place), token
    own, port = host_and_port("--address", asked.address, PORT) if asked.address else ("", PORT)
    node = node_address(own, loopback=asked.loopback)
    check_port_free(port)
    return NodeState(f"{node}:{port}", node, True, mark, place), _token(asked.token_file) or secrets.token_hex(32)


def _token(file: str) -> str:
    """The token to use: of the file, or of the environment; "" where neither has one."""
    if file:
        return read_token(file)
    if token := os.environ.get("RAY_AUTH_TOKEN", ""):
        return checked_token("RAY_AUTH_TOKEN", token.strip())
    if path := os.environ.get("RAY_AUTH_TOKEN_PATH", ""):
        return read_token(path)
    return ""


def _place() -> str:
    """A name for the folder in which Ray works, short: sockets are in there."""
    try:
        base = tempfile.gettempdir()
    except OSError as error:
        raise ConfigError("TMPDIR", os.environ.get("TMPDIR", ""), f"{error.strerror}: free space there") from error
    place = os.path.join(os.path.abspath(base), f"ovc-{secrets.token_hex(4)}")
    if len(place) > _PLACE_CHARS:
        raise ConfigError("TMPDIR", base, "is too long for the sockets of Ray: set it to a shorter one, as /tmp")
    return place


def _ray_start(state: NodeState, words: Sequence[str]) -> None:
    role = [f"--address={state.address}"]
    if state.head:
        role = ["--head", f"--port={state.address.rpartition(':')[2]}", "--include-dashboard=false"]
    place = Path(state.place)
    common = [f"--node-ip-address={state.node}", f"--temp-dir={place / 'ray'}", f"--labels={LABEL}={code_digest()}"]
    for folder, mode in ((place, 0o711), (place / "ray", 0o700), (place / "tmp", 0o711)):
        folder.mkdir(mode)
    log = place / "ray" / "start.log"
    with open(log, "wb") as out:
        command = [*_RAY, "start", *role, *common, "--disable-usage-stats", *words]
        process = subprocess.Popen(
            command,
            env=node_environment(state),
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a terminal that is closed ends no node
        )
        try:
            code = process.wait(START_S)
        except subprocess.TimeoutExpired as error:
            raise OverlapError(f"`ray start` did not end within {START_S:g} s; it said: {_told(log)}") from error
        finally:
            process.kill()
            process.wait()
    if code:
        raise OverlapError(f"`ray start` failed (exit code {code}); it said: {_told(log)}")


def node_environment(state: NodeState) -> dict[str, str]:
    """What the processes of a node start with: the token by the name of its file only, and a folder for what a killed
    one leaves. (Others may go through it, for as root the sandbox gives its programs uids of their own.)
    """
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_path())}
    place = {"TMPDIR": os.path.join(state.place, "tmp"), MARK: state.mark}
    return {**HEALTH, **child_environment(), **token, **place, "RAY_USAGE_STATS_ENABLED": "0"}


def _told(log: Path) -> str:
    text = one_line(log.read_text(encoding="utf-8", errors="replace"))
    return f"... {text[-_TOLD_CHARS:]}" if len(text) > _TOLD_CHARS else text or "nothing"


def _end(state: NodeState) -> None:
    marked = state.processes()
    raylets = [process for process in marked if read_proc(process.pid, "comm") == b"raylet\n"]
    below = [child for process in raylets for child in list_descendants(process.pid)]
    _ask(raylets)  # it ends its workers, and an agent has its sandbox end
    process_tree.await_end([*raylets, *below], RAYLET_S)
    rest = state.processes()
    _ask(rest)
    process_tree.await_end(rest, REST_S)
    left = kill_tree([*state.processes(), *below], KILL_S, trackers=True)
    if left:
        raise OverlapError(f"these processes of the node did not end: {', '.join(map(str, left))}; try again")
    forget(state)


def _ask(processes: Iterable[Pid]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            fd = os.pidfd_open(process.pid)
            try:
                if identify(process.pid) == process:
                    signal.pidfd_send_signal(fd, signal.SIGTERM)
            finally:
                os.close(fd)
