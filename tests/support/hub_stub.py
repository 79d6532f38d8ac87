"""A hub of Hugging Face on this machine: who asks, new repositories, and uploads, as huggingface_hub 2.4 asks for them.

with Hub() as hub: ... HF_ENDPOINT=hub.url HF_TOKEN=hub.token HF_HUB_DISABLE_XET=1
"""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlparse

_SILENT = {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}


class Hub:
    """``files``: by repository, path -> content. ``fails``: statuses by the first word of a request's path."""

    token = "hf_stub"

    def __init__(self, **fails: int) -> None:
        self.fails = fails
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.requests: list[str] = []
        self.objects: dict[str, bytes] = {}
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self, b"")

            def do_HEAD(self) -> None:
                hub.answer(self, b"")

            def do_POST(self) -> None:
                hub.answer(self, self.rfile.read(int(self.headers.get("Content-Length", 0))))

            do_PUT = do_POST

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Hub:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def environment(self) -> dict[str, str]:
        """What the hub's client has to be told."""
        return {"HF_ENDPOINT": self.url, "HF_TOKEN": self.token, "HF_HUB_DISABLE_XET": "1", **_SILENT}

    def answer(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        path = urlparse(request.path).path
        self.requests.append(f"{request.command} {path}")
        word = next((word for word in ("whoami", "create", "preupload", "commit") if word in path), "")
        status, told = 200, dict[str, Any]()
        if word in self.fails:
            status, told = self.fails[word], {"error": "the stub says no"}
        elif not path.startswith("/lfs/") and request.headers.get("Authorization") != f"Bearer {self.token}":
            status, told = 401, {"error": "Invalid username or password."}
        else:
            told = self._told(path, body)
            status = 404 if told.get("error") else 200
        sent = json.dumps(told).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(sent)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(sent)

    def _told(self, path: str, body: bytes) -> dict[str, Any]:
        if path == "/api/whoami-v2":
            return {"name": "owner", "type": "user", "orgs": []}
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'owner'}/{asked['name']}"
            self.private[name] = bool(asked.get("private")) or asked.get("visibility") == "private"
            self.files.setdefault(name, {})
            return {"url": f"{self.url}/{name}", "name": name, "id": name}
        if "/preupload/" in path:
            files = json.loads(body)["files"]
            return {"files": [_mode(file) for file in files]}
        if path.endswith("/info/lfs/objects/batch"):
            asked = json.loads(body)["objects"]
            return {"transfer": "basic", "objects": [self._object(each) for each in asked]}
        if path.startswith("/lfs/"):
            self.objects[path.removeprefix("/lfs/")] = body
            return {}
        if "/commit/" in path:
            name = path.removeprefix("/api/models/").partition("/commit/")[0]
            for line in body.splitlines():
                self._commit(self.files.setdefault(name, {}), json.loads(line))
            return {"commitUrl": f"{self.url}/{name}/commit/{'0' * 40}", "commitOid": "0" * 40, "success": True}
        name = "/".join(path.removeprefix("/api/models/").split("/")[:2])
        unknown = path.startswith("/api/models/") and name not in self.files
        return {"error": "Repository not found"} if unknown else {"sha": "0" * 40, "siblings": [], "id": name}

    def _object(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {**asked, "actions": {"upload": {"href": f"{self.url}/lfs/{asked['oid']}", "header": {}}}}

    def _commit(self, files: dict[str, bytes], line: dict[str, Any]) -> None:
        value = line["value"]
        if line["key"] == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif line["key"] == "lfsFile":
            files[value["path"]] = self.objects[value["oid"]]


def _mode(file: dict[str, Any]) -> dict[str, Any]:
    large = file["path"].endswith((".safetensors", ".png"))
    return {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
