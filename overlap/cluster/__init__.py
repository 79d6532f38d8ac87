"""Many machines: programs judged on every node of a Ray cluster, and processes of ours on some of them.

What for: ``ClusterPool`` stands where ``sandbox.Pool`` does, ``FarSite`` where an engine's own machine does and
``RankSite`` where that of learner ranks does; the rest knows no difference. Routing, accounting and retries are the
driver's; an agent on each node owns what runs there. Ray lives in a process of its own.
"""

from overlap.cluster.access import check_address
from overlap.cluster.fleet import RayFleet, survey
from overlap.cluster.members import RayMembers
from overlap.cluster.nodes import NodeParcel, RayNodeInfo, code_digest
from overlap.cluster.pool import ClusterPool
from overlap.cluster.ray_cluster import RayCluster
from overlap.cluster.sites import FarSite, RankSite

__all__ = [
    "ClusterPool",
    "FarSite",
    "NodeParcel",
    "RankSite",
    "RayCluster",
    "RayFleet",
    "RayMembers",
    "RayNodeInfo",
    "check_address",
    "code_digest",
    "survey",
]
