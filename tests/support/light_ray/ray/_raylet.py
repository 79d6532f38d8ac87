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
        rows = json.loads((self.place / "nodes.json").read_text())
        rows = [
            row | {"node_id": b"\1\2\3\4\5", "death_info": SimpleNamespace(reason_message=row["why"])} for row in rows
        ]
        return dict(enumerate(SimpleNamespace(ALIVE=0, **row) for row in rows))
