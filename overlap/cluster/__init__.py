"""Many machines: programs judged on every node of a Ray cluster, and processes of ours on some of them.

What for: ``ClusterPool`` stands where ``sandbox.Pool`` does, ``FarSite`` where an engine's own machine does and
``RankSite`` where that of learner ranks does; the rest knows no difference. Routing, accounting and retries are the
driver's; an agent on each node owns what runs there. Ray is imported when a cluster is joined.
"""

from typing import TYPE_CHECKING

from overlap.cluster.addresses import check_address, own_addresses
from overlap.cluster.asking import call_roll
from overlap.cluster.by_hand import NodeStartOptions, await_node, end_node, owned_node, start_node
from overlap.cluster.node_state import NodeState, token_path
from overlap.cluster.nodes import JobParcel, code_digest
from overlap.cluster.pool import ClusterPool
from overlap.cluster.rank_site import RankSite
from overlap.cluster.sites import Berths, FarSite

if TYPE_CHECKING:
    from overlap.cluster.ray_cluster import RayCluster
    from overlap.cluster.ray_hosts import RayFleet, survey
    from overlap.cluster.ray_members import RayMembers
else:
    from sandbox.lazy import names

    __getattr__ = names(
        __name__,
        {
            "ray_cluster": ("RayCluster",),
            "ray_hosts": ("RayFleet", "survey"),
            "ray_members": ("RayMembers",),
        },
    )

__all__ = [
    "Berths",
    "ClusterPool",
    "FarSite",
    "JobParcel",
    "NodeStartOptions",
    "NodeState",
    "RankSite",
    "RayCluster",
    "RayFleet",
    "RayMembers",
    "await_node",
    "call_roll",
    "check_address",
    "code_digest",
    "end_node",
    "own_addresses",
    "owned_node",
    "start_node",
    "survey",
    "token_path",
]
