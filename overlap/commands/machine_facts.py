"""What ``overlap doctor`` asks of this machine, a method each, so that a test can make a machine of its own."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import psutil

from overlap.placement.devices import bfloat16_is_fast, free_memory
from overlap.process.process_tree import kill_tree
from overlap.process.run_environment import child_environment
from sandbox.pool.quotas import cores, memory_bytes

ROOT = Path(__file__).resolve().parents[2]
"""The repository, where this package is installed from one."""
CONNECT_S = 5.0
_KILL_S = 5.0


class MachineFacts:
    """This machine."""

    def __init__(self) -> None:
        self._running = set[subprocess.Popen[str]]()

    @property
    def environ(self) -> Mapping[str, str]:
        return os.environ

    @property
    def cores(self) -> int:
        """Those that this process may use."""
        return cores()

    @property
    def has_bfloat16(self) -> bool:
        """Whether the processor computes bfloat16 as fast as float32."""
        return bfloat16_is_fast()

    @property
    def free_memory(self) -> int:
        """Bytes that new processes can have."""
        return free_memory()

    @property
    def memory_bytes(self) -> int:
        """Bytes that the machine has, or the container that this process is in."""
        return memory_bytes()

    @property
    def shared_memory(self) -> int | None:
        """Free bytes of ``/dev/shm``; None where there is none."""
        try:
            return shutil.disk_usage("/dev/shm").free
        except OSError:
            return None

    @property
    def open_files(self) -> int:
        """How many files a process may have open."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return sys.maxsize if soft == resource.RLIM_INFINITY else soft

    @property
    def has_python_header(self) -> bool:
        return Path(sysconfig.get_path("include"), "Python.h").exists()

    @property
    def gpus(self) -> tuple[str, ...]:
        """Names of the GPUs that NVIDIA's driver shows, or, where a container hides its list, their device files."""
        listed = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
        return tuple(map(str, listed or sorted(Path("/dev").glob("nvidia[0-9]*"))))

    def disk(self, path: Path) -> tuple[Path, int, bool]:
        """The folder that ``path`` would be made in, the bytes that are free there, and whether it can be written."""
        folder = next(place for place in (path, *path.parents) if place.exists())
        usable = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
        return folder, shutil.disk_usage(folder).free, usable

    def program(self, name: str) -> str | None:
        """Path of a program; None where it is not installed."""
        return shutil.which(name)

    def run(self, command: Sequence[str], timeout_s: float) -> tuple[int, str]:
        """Run a command; returns its exit code and its output. Raises OSError and subprocess.TimeoutExpired."""
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=child_environment(),
        )
        self._running.add(process)
        try:
            output, _ = process.communicate(timeout=timeout_s)
        finally:
            _end(process)
            self._running.discard(process)
        return process.returncode, output

    def close(self) -> None:
        """End the commands that still run."""
        for process in list(self._running):
            _end(process)

    def version(self, package: str) -> str | None:
        """Version of an installed package; None where it is not there."""
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

    def pins(self, device: str) -> Path | None:
        """The list of pinned packages for "cpu" or "cuda"; None where this is no checkout."""
        path = ROOT / "requirements" / f"{device}.txt"
        return path if path.is_file() else None

    def loopback(self) -> None:
        """Send a byte over 127.0.0.1. Raises OSError."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(CONNECT_S)
            with socket.create_connection(server.getsockname()[:2], timeout=CONNECT_S) as sender:
                taken, _ = server.accept()
                with taken:
                    taken.settimeout(CONNECT_S)
                    sender.sendall(b"x")
                    if taken.recv(1) != b"x":
                        raise OSError("what was sent did not arrive")

    def hub(self) -> str:
        """The address of the hub, which has answered. Raises any error of the network."""
        from huggingface_hub import constants, get_session

        get_session().head(constants.ENDPOINT, timeout=CONNECT_S)
        return str(constants.ENDPOINT)

    def is_cached(self, hub_id: str) -> bool:
        """Whether the hub's local cache has this policy's configuration."""
        from huggingface_hub import try_to_load_from_cache

        return isinstance(try_to_load_from_cache(hub_id, "config.json"), str)

    def processes(self, name: str) -> list[int]:
        """The processes of this name."""
        return [process.pid for process in psutil.process_iter(["name"]) if process.info["name"] == name]


def _end(process: subprocess.Popen[str]) -> None:
    """Kill a process and those that it has started, where it has not ended; one that hangs in a driver stays."""
    if process.poll() is None:
        kill_tree([process.pid], _KILL_S, reap=False)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_S)
