"""What ``overlap cluster up`` keeps of the node that it started on this machine: where it is, and the token.

    <state folder of the user>/overlap/cluster/<host>/node.json
                                                     /token       0600

One node of a user to a machine. A home that many machines share has a folder for each. No Ray in here.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from overlap.atomic import write_atomic
from overlap.errors import ConfigError, OverlapError, RunDirError
from overlap.process import Pid, alive, process_tree

MARK = "OVERLAP_CLUSTER"
"""Environment variable of every process of a node, with a name that no other node has."""
AUTH = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
"""Where Ray reads whether it asks for a token, and which."""
_NODE, _TOKEN = "node.json", "token"
_TOKEN_BYTES = 4096


@dataclass(frozen=True, slots=True)
class NodeState:
    """``address``: of the cluster's head, "host:port"; ``node``: of this machine in it; ``mark``: what its processes
    have in their environment; ``place``: the folder of all its files, which goes with it.
    """

    address: str
    node: str
    head: bool
    mark: str
    place: str

    def processes(self) -> list[Pid]:
        """What runs of it."""
        return [process for process in process_tree.marked(f"{MARK}={self.mark}") if alive(process)]


def state_folder() -> Path:
    """Raises ConfigError where the user has no home."""
    asked = os.environ.get("XDG_STATE_HOME", "")
    try:
        base = Path(asked) if os.path.isabs(asked) else Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise ConfigError("HOME", "", "is not known: set it, or XDG_STATE_HOME") from error
    return base / "overlap" / "cluster" / (socket.gethostname().replace("/", "-") or "localhost")


def token_path() -> Path:
    return state_folder() / _TOKEN


def read_node_state() -> NodeState | None:
    """The node that was started here, whether or not it runs; None where there is none. Raises ConfigError."""
    path = state_folder() / _NODE
    try:
        return NodeState(**json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError) as error:
        way_out = f"cannot be read ({error}): end what runs there (`ray stop`), and remove the folder"
        raise ConfigError("state of the node", str(path), way_out) from error


def write_node_state(state: NodeState, token: str) -> None:
    """Raises RunDirError, or ConfigError."""
    folder = state_folder()
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        token_path().unlink(missing_ok=True)
        with open(os.open(folder / _TOKEN, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(token)
    except OSError as error:
        way_out = "free disk space, or set XDG_STATE_HOME to a folder that can be written"
        raise RunDirError(f"cannot write {folder}: {error.strerror or error}; {way_out}") from error
    write_atomic(folder / _NODE, json.dumps(asdict(state), indent=1) + "\n")


def forget(state: NodeState) -> None:
    """Remove all that is kept of a node that has ended, and the folders that are empty then."""
    from sandbox.kernel import remove_run_directory, remove_tree

    for left in Path(state.place, "tmp").glob("overlap-sandbox-*"):  # of a killed one; with its cgroup
        remove_run_directory(str(left))
    remove_tree(state.place)
    with suppress(OSError):
        token_path().unlink(missing_ok=True)
        (state_folder() / _NODE).unlink(missing_ok=True)


def token_of(address: str) -> Path | None:
    """The file with the token of the cluster at ``address``, where a node of it was started here."""
    state, path = read_node_state(), token_path()
    return path if state is not None and state.address == address and path.is_file() else None


def read_token(name: str) -> str:
    """The token in a file. Raises ConfigError, also where others may read it."""
    try:
        path = Path(name).expanduser()
        with open(path, encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(_TOKEN_BYTES).strip()
    except (OSError, RuntimeError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError("--token-file", name, f"cannot be read ({why}): copy it from the cluster's head") from error
    if stat.S_ISREG(mode) and mode & 0o077:
        raise ConfigError("--token-file", name, f"others may read it: chmod 600 {path}")
    return checked_token("--token-file", token)


def checked_token(field: str, token: str) -> str:
    """Raises ConfigError, which does not tell it, for what cannot be a token."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(field, "..." if token else "", "is not a token: it must be a line of letters and digits")
    return token


@contextmanager
def single_command() -> Iterator[None]:
    """For one command of this user on this machine at a time. Raises OverlapError where another is at work."""
    folder = state_folder()
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        way_out = "free disk space, or set XDG_STATE_HOME to a folder that can be written"
        raise RunDirError(f"cannot write {folder}: {error.strerror or error}; {way_out}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not folder.exists() or not os.path.samestat(os.fstat(lock), folder.stat()):
            raise BlockingIOError  # another one has just removed it
        yield
    except BlockingIOError as error:
        raise OverlapError("another `overlap cluster` command runs on this machine: wait until it ends") from error
    finally:
        _remove_empty(folder)
        os.close(lock)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        for each in (folder, folder.parent, folder.parent.parent):
            each.rmdir()
