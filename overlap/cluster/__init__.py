"""Many machines: programs judged on every node of a Ray cluster, and processes of ours on some of them.

``ClusterPool`` replaces ``sandbox.Pool``, ``FarSite`` the ``EngineSite`` of engines, and ``RankSite`` the local site of
learner ranks; callers see no difference. The driver does routing, accounting and retries; an agent on each node owns
the processes there. Ray runs in a process of its own.
"""
