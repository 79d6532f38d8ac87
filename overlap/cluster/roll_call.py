"""Prints the nodes of the cluster at an address, as JSON: ``python -m overlap.cluster.roll_call HOST:PORT``.

In a process of its own, for Ray may wait for ever for a head that is gone, or end the process that asks. It asks the
head only: no node of the cluster need be on this machine.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from ray._private.state import GlobalState
from ray._raylet import GcsClientOptions  # type: ignore[attr-defined]

from overlap.cluster.asking import LABEL


def nodes(address: str) -> list[dict[str, Any]]:
    """Every node that is there or was: address, id, whether it is alive, cores, GPUs, version of our code ("" where it
    was not started by us), and why it died.
    """
    table = GlobalState()
    table._initialize_global_state(
        GcsClientOptions.create(address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
    )
    return [
        {
            "address": node["NodeManagerAddress"],
            "key": node["NodeID"],
            "alive": bool(node["Alive"]),
            "cores": int(node.get("Resources", {}).get("CPU", 0)),
            "gpus": int(node.get("Resources", {}).get("GPU", 0)),
            "version": node.get("Labels", {}).get(LABEL, ""),
            "why": str(node.get("DeathReasonMessage") or ""),
        }
        for node in table.node_table()
    ]


if __name__ == "__main__":
    print(json.dumps(nodes(sys.argv[1])))
