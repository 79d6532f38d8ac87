"""``ray start``: writes down how it was called, and leaves the daemons of a node behind.

RAY_DOUBLE: a folder. In it ``called.json`` appears; what lies there as ``fail`` is said before it fails, with ``hang``
it does not end, with ``stubborn`` its raylet does not hear SIGTERM, and with ``careless`` it ends without its worker.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PLACE = Path(os.environ["RAY_DOUBLE"])


def named(name: str) -> None:
    Path("/proc/self/comm").write_text(name)


def daemon(*args: str) -> None:
    ready, told = os.pipe()
    command = [sys.executable, "-m", "ray.scripts.scripts", *args, str(told)]
    subprocess.Popen(command, pass_fds=[told], start_new_session=True, stdout=subprocess.DEVNULL)
    os.close(told)
    assert os.read(ready, 1) == b"x"


def gcs(port: str, told: str) -> None:
    named("gcs_server")
    with socket.create_server(("", int(port))) as server:
        os.write(int(told), b"x")
        while True:
            server.accept()[0].close()


def raylet(told: str) -> None:
    """Its worker knows nothing of the node, and hears no SIGTERM."""
    named("raylet")
    program = "import os, signal; signal.signal(15, signal.SIG_IGN); os.write(1, b'x'); signal.pause()"
    worker = subprocess.Popen([sys.executable, "-c", program], env={}, stdout=subprocess.PIPE)
    assert worker.stdout is not None
    worker.stdout.read(1)
    (PLACE / "worker").write_text(str(worker.pid))

    def end(number: int, frame: object) -> None:
        if not (PLACE / "careless").exists():
            worker.kill()
        os._exit(0)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if (PLACE / "stubborn").exists() else end)
    os.write(int(told), b"x")
    while True:
        signal.pause()


def start(words: list[str]) -> None:
    (PLACE / "called.json").write_text(json.dumps({"words": words, "environment": dict(os.environ)}))
    if (PLACE / "fail").exists():
        daemon("raylet")
        sys.exit((PLACE / "fail").read_text())
    if (PLACE / "hang").exists():
        (PLACE / "hangs").write_text("")
        time.sleep(600)
    options = dict(word.removeprefix("--").partition("=")[::2] for word in words)
    if "head" in options:
        daemon("gcs", options["port"])
    daemon("raylet")


if __name__ == "__main__":
    {"start": lambda *words: start(list(words)), "gcs": gcs, "raylet": raylet}[sys.argv[1]](*sys.argv[2:])
