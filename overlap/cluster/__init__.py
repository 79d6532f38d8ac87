"""Many machines: programs judged on every node of a Ray cluster, and processes of ours on some of them.

What for: ``ClusterPool`` stands where ``sandbox.Pool`` does, ``FarSite`` where an engine's own machine does and
``RankSite`` where that of learner ranks does; the rest knows no difference. Routing, accounting and retries are the
driver's; an agent on each node owns what runs there. Ray lives in a process of its own.
"""
