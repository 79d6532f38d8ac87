"""What the head says: ``RAY_DOUBLE/nodes.json``, to whoever has the token in ``RAY_DOUBLE/token``, if there is one."""

import json
import os
from pathlib import Path


class GlobalState:
    def _initialize_global_state(self, options: str) -> None:
        self.address = options

    def node_table(self) -> list[dict[str, object]]:
        place = Path(os.environ["RAY_DOUBLE"])
        if (place / "token").exists():
            path = os.environ.get("RAY_AUTH_TOKEN_PATH")
            said = Path(path).read_text() if path else os.environ.get("RAY_AUTH_TOKEN", "")
            if os.environ.get("RAY_AUTH_MODE") != "token" or said != (place / "token").read_text():
                raise RuntimeError("invalid token")
        nodes: list[dict[str, object]] = json.loads((place / "nodes.json").read_text())
        return nodes
