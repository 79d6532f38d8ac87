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
from pathlib import Path

PLACE = Path(os.environ["RAY_DOUBLE"])
SETTINGS = b"\0\0\0\4\0\0\0\0\0"


def daemon(*args: str) -> None:
    command = [sys.executable, "-m", "ray.scripts.scripts", *args]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(1) == b"x"


def ready(name: str) -> None:
    Path("/proc/self/comm").write_text(name)
    os.write(1, b"x")
    os.close(1)


def gcs(port: str) -> None:
    with socket.create_server(("", int(port))) as server:
        ready("gcs_server")
        while True:
            with server.accept()[0] as connection:
                connection.sendall(SETTINGS)


def raylet() -> None:
    """Its worker knows nothing of the node, and hears no SIGTERM."""
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
    ready("raylet")
    while True:
        signal.pause()


def start(*words: str) -> None:
    (PLACE / "called.json").write_text(json.dumps({"words": words, "environment": dict(os.environ)}))
    if (PLACE / "fail").exists():
        daemon("raylet")
        code, _, said = (PLACE / "fail").read_text().partition(" ")
        print(said)
        sys.exit(int(code))
    if (PLACE / "hang").exists():
        (PLACE / "hangs").write_text("")
        signal.pause()
    options = dict(word.removeprefix("--").partition("=")[::2] for word in words)
    if "head" in options:
        daemon("gcs", options["port"])
    daemon("raylet")


if __name__ == "__main__":
    {"start": start, "gcs": gcs, "raylet": raylet}[sys.argv[1]](*sys.argv[2:])
