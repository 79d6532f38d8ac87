"""What the head says: ``RAY_DOUBLE/nodes.json``, to whoever has the token in ``RAY_DOUBLE/token``, if there is one."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

from ray.exceptions import AuthenticationError

Config = AuthenticationTokenLoader = MagicMock()


class GcsClient:
    def __init__(self, address: str) -> None:
        self.place = Path(os.environ["RAY_DOUBLE"])
        token, said = self.place / "token", (os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"])
        if token.exists() and said != ("token", token.read_text()):
            raise AuthenticationError

    def get_all_node_info(self) -> dict[int, SimpleNamespace]:
        names = ("node_manager_address", "state", "labels", "resources_total", "why")
        rows = json.loads((self.place / "nodes.json").read_text())
        nodes = [SimpleNamespace(**dict(zip(names, row, strict=True))) for row in rows]
        for node in nodes:
            node.ALIVE, node.node_id, node.death_info = 0, b"\1\2\3\4\5", SimpleNamespace(reason_message=node.why)
        return dict(enumerate(nodes))
