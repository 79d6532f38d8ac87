"""Headless Chromium for pages that we serve, by its debugging protocol. Tests that use it skip where it is missing."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--remote-debugging-port=0",
        "--hide-scrollbars",
    ),
)
START_S, ANSWER_S = 40.0, 30.0


class Browser:
    """One page in a headless Chromium."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._number = 0
        self.faults: list[str] = []
        """Errors of scripts, of the console, and of what the page may not load."""
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """Call the protocol and return its result."""
        self._number += 1
        self._connection.send(json.dumps({"id": self._number, "method": method, "params": given}))
        while True:
            message = json.loads(self._connection.recv(timeout=ANSWER_S))
            self._note(message)
            if message.get("id") == self._number:
                assert "error" not in message, message["error"]
                return dict(message["result"])

    def _note(self, message: dict[str, Any]) -> None:
        given = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.faults.append(str(given["exceptionDetails"].get("exception", {}).get("description")))
        elif message.get("method") == "Log.entryAdded" and given["entry"]["level"] == "error":
            self.faults.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")

    def look(self, width: int, height: int = 800, *, dark: bool = False) -> None:
        """Set the size of the window and the colour scheme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        """Go to a page."""
        self.call("Page.navigate", url=address)

    def evaluate(self, script: str) -> Any:
        """The value of an expression, awaited where it is a promise."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str) -> Any:
        """The value of an expression, of numbers and texts, as soon as it is true."""
        end = time.monotonic() + ANSWER_S
        while not (found := self.evaluate(condition)):
            assert time.monotonic() < end, f"{condition} did not become true: {self.faults}"
            time.sleep(0.02)
        return found

    def press(self, key: str) -> None:
        """Press a key."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **(text if kind == "keyDown" else {}))

    def screenshot(self, path: Path) -> None:
        """Write what is seen as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with one empty page; skips the test where there is no Chromium, or no websockets to talk to it."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    client = pytest.importorskip("websockets.sync.client")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        environment = os.environ | {"TMPDIR": profile}  # a killed one removes nothing
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, env=environment, start_new_session=True, **silent)
        try:
            with client.connect(_page_address(Path(profile)), max_size=None, proxy=None) as connection:
                yield Browser(connection)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # its children write into the profile, too
            process.wait()


def _page_address(profile: Path) -> str:
    """Where the page is debugged, when the browser has said its port."""
    end, port = time.monotonic() + START_S, profile / "DevToolsActivePort"
    while True:
        try:
            number = port.read_text().split("\n")[0]
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"http://127.0.0.1:{int(number)}/json/list", timeout=ANSWER_S) as answer:
                return str(next(t for t in json.load(answer) if t["type"] == "page")["webSocketDebuggerUrl"])
        except (OSError, ValueError, StopIteration):
            assert time.monotonic() < end, "Chromium did not start"
            time.sleep(0.05)
