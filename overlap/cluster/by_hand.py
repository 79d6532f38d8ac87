"""A node of a Ray cluster on this machine, started and ended by a person: ``ray start``, with what we insist on.

Every cluster started here asks for a token, has no dashboard, and lets a node that was cut off in again. Whatever
belongs to a node has its folder in the environment, so that it is found and ended whatever became of who started it.
A user has one node to a machine, of which is kept, apart for each machine that shares the home:

    <state folder of the user>/overlap/cluster/<host>/node.json
                                                     /token       0600
                                                     /lock        while a command is at work
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from overlap.atomic import guarded, write_atomic
from overlap.cluster.addresses import AUTH, LABEL, PORT, call_roll, check_port_free, host_and_port, own_address
from overlap.cluster.nodes import code_digest
from overlap.errors import ConfigError, OverlapError, one_line
from overlap.process import process_tree
from overlap.process.process_tree import Pid
from overlap.process.run_environment import child_environment
from overlap.process.scratch import temporary_directory
from sandbox.kernel.clear import remove_tree
from sandbox.kernel.orphan_cleanup import remove_run_directory

START_S = 90.0
RAYLET_S, KILL_S = 8.0, 5.0
"""What a node has to end in: Ray's own way, killed."""
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
MARK = "OVERLAP_CLUSTER"
_PLACE_CHARS = 36
_OURS = ("head", "address", "port", "node-ip-address", "temp-dir", "include-dashboard", "labels", "block")


class NodeState(NamedTuple):
    """``address``: of the cluster's head, "host:port"; ``place``: the folder of all its files, which goes with it."""

    address: str
    head: bool
    place: str

    def processes(self) -> list[Pid]:
        """What runs of it."""
        return [process for process in process_tree.marked(f"{MARK}={self.place}") if process_tree.alive(process)]

    def raylets(self) -> list[Pid]:
        """The process of Ray's that is the node; none where the node has gone."""
        return [process for process in self.processes() if process_tree.read_proc(process.pid, "comm") == b"raylet\n"]


def start_node(
    address: str = "", *, join: str = "", token_file: str = "", loopback: bool = False, words: Sequence[str] = ()
) -> NodeState:
    """Start a node on this machine, which has this address ("": the one that others reach): of the cluster whose head
    is at ``join``, or else the head of a new one. ``words`` go to ``ray start``. Raises ConfigError, and OverlapError
    where Ray does not start: nothing is left.
    """
    for word in words:
        if word.removeprefix("--").partition("=")[0] in _OURS:
            raise ConfigError("ray start", word, "is set by `overlap cluster up`: leave it out")
    with single_command():
        former = read_node_state()
        if former is not None and former.raylets():
            raise ConfigError("cluster", former.address, "a node runs here already: `overlap cluster down` stops it")
        state, own, token = _planned(address, join, token_file, loopback)
        if former is not None:
            _end(former)  # Ray has ended it, or the machine was started anew
        if state.head:
            check_port_free(host_and_port("--address", state.address)[1])
        try:
            write_node_state(state, token)  # first: whatever comes between, ``end_node`` finds what there is
            _ray_start(state, own, words)
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


def await_node(state: NodeState) -> NoReturn:
    """Wait until the node ends, for as long as it lives. Raises OverlapError then."""
    raylets = state.raylets()
    while process_tree.await_end(raylets, 3600.0):
        pass
    raise OverlapError("the node has stopped by itself: its head may be gone")


def token_path() -> Path:
    """Raises ConfigError where the user has no home."""
    asked = os.environ.get("XDG_STATE_HOME", "")
    try:
        base = Path(asked) if os.path.isabs(asked) else Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise ConfigError("HOME", "", "is not known: set it, or XDG_STATE_HOME") from error
    return base / "overlap" / "cluster" / (socket.gethostname().replace("/", "-") or "localhost") / "token"


def read_node_state() -> NodeState | None:
    """The node that was started here, whether or not it runs; None where there is none. Raises ConfigError."""
    path = token_path().with_name("node.json")
    try:
        return NodeState(*json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
    except (OSError, ValueError, TypeError) as error:
        way_out = f"cannot be read ({error}): end what runs there (`ray stop`), and remove the folder"
        raise ConfigError("state of the node", str(path), way_out) from error


def write_node_state(state: NodeState, token: str) -> None:
    """Raises RunDirError, or ConfigError."""
    path = token_path()
    with guarded(path):
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.touch(0o600, exist_ok=False)
        path.write_text(token)
    write_atomic(path.with_name("node.json"), json.dumps(state))


def token_of(address: str) -> Path | None:
    """The file with the token of the cluster at ``address``, where a node of it was started here."""
    state, path = read_node_state(), token_path()
    return path if state is not None and state.address == address and path.is_file() else None


def find_token(file: str, address: str) -> str:
    """The token of the cluster at ``address``: the one in ``file``, else in the environment, else of the node that was
    started here; "" where there is none. Raises ConfigError, which does not tell it, also where others may read it.
    """
    field, name, token = AUTH[1], "...", "" if file else os.environ.get(AUTH[1], "").strip()
    if not token:
        field, name = "--token-file", file or os.environ.get(AUTH[2]) or str(token_of(address) or "")
        if not name:
            return ""
        try:
            with open(Path(name).expanduser(), encoding="utf-8") as opened:
                mode, token = os.fstat(opened.fileno()).st_mode, opened.read(4096).strip()
        except (OSError, RuntimeError, ValueError) as error:
            raise ConfigError(field, name, f"cannot be read ({error}): copy it from the cluster's head") from error
        if stat.S_ISREG(mode) and mode & 0o077:
            raise ConfigError(field, name, "others may read it: chmod 600 it")
    if not re.fullmatch("[!-~]+", token):
        raise ConfigError(field, name, "is not a token: it must be a line of letters and digits")
    return token


@contextmanager
def single_command() -> Iterator[None]:
    """For one command of this user on this machine at a time. Raises OverlapError where another is at work."""
    path = token_path().with_name("lock")
    with guarded(path):
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        lock = path.open("a")  # written to: over a network a folder cannot be locked
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                raise BlockingIOError
        except (BlockingIOError, FileNotFoundError) as error:  # another one has it, or has just removed it
            raise OverlapError("another `overlap cluster` command runs on this machine: wait until it ends") from error
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink()
                os.removedirs(path.parent)  # as far up as nothing is in them


def _planned(address: str, join: str, token_file: str, loopback: bool) -> tuple[NodeState, list[str], str]:
    """With what ``ray start`` is told of addresses, and the token."""
    place = str(temporary_directory() / f"ovc-{secrets.token_hex(4)}")
    if len(place) > _PLACE_CHARS:
        raise ConfigError("TMPDIR", place, "is too long for the sockets of Ray: set it to a shorter one, as /tmp")
    host, port = host_and_port("--address", address, PORT) if address else ("", PORT)
    host = own_address(host, loopback=loopback) if host or not join else ""  # "": by the way to the head
    words = [f"--node-ip-address={host}"] if host else []
    if not join:
        token = find_token(token_file, f"{host}:{port}") or secrets.token_hex(32)
        words += ["--head", f"--port={port}", "--include-dashboard=false"]
        return NodeState(f"{host}:{port}", True, place), words, token
    token = find_token(token_file, join)
    if not call_roll("--join", join, token)[0]:
        raise ConfigError("--join", join, "lets everybody in, without a token: start its head by this command")
    return NodeState(join, False, place), [*words, f"--address={join}"], token


def _ray_start(state: NodeState, own: Sequence[str], words: Sequence[str]) -> None:
    place, log = Path(state.place), Path(state.place, "ray", "start.log")
    for folder, mode in ((place, 0o711), (place / "ray", 0o700), (place / "tmp", 0o711)):
        folder.mkdir(mode)  # others may go through, for as root the sandbox gives its programs uids of their own
    own = [*own, f"--temp-dir={place / 'ray'}", f"--labels={LABEL}={code_digest()}", "--disable-usage-stats"]
    known = {AUTH[0]: "token", AUTH[2]: str(token_path()), MARK: state.place, "TMPDIR": str(place / "tmp")}
    with log.open("wb") as out:
        try:
            subprocess.run(
                [sys.executable, "-m", "ray.scripts.scripts", "start", *own, *words],
                env=HEALTH | child_environment(RAY_USAGE_STATS_ENABLED="0", **known),
                cwd=log.parent,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=START_S,
                start_new_session=True,  # a terminal that is closed ends no node
                check=True,
            )
        except subprocess.SubprocessError as error:
            said = one_line(log.read_text(encoding="utf-8", errors="replace"))[-800:] or "nothing"
            code = getattr(error, "returncode", None)
            if code == 2:  # it does not understand its words
                raise ConfigError("ray start", " ".join(words), said) from error
            how = f"failed (exit code {code})" if code else f"did not end within {START_S:g} s"
            raise OverlapError(f"`ray start` {how}; it said: {said}") from error


def _end(state: NodeState) -> None:
    raylets = state.raylets()
    below = [child for raylet in raylets for child in process_tree.list_descendants(raylet.pid)]
    for raylet in raylets:  # it ends its workers, and an agent has its sandbox end
        with suppress(ProcessLookupError):
            os.kill(raylet.pid, signal.SIGTERM)
    process_tree.await_end([*raylets, *below], RAYLET_S)
    if left := process_tree.kill_tree([*state.processes(), *below], KILL_S, trackers=True):
        raise OverlapError(f"these processes of the node did not end: {', '.join(map(str, left))}; try again")
    for killed in Path(state.place, "tmp").glob("overlap-sandbox-*"):  # what it left, with its cgroup
        remove_run_directory(str(killed))
    remove_tree(state.place)
    with suppress(OSError):
        for path in (token_path(), token_path().with_name("node.json")):
            path.unlink(missing_ok=True)
