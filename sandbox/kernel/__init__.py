"""Linux facilities to confine and clean up: system calls, filters, cgroups, sealed memory, uids.

A jail's processes import this, and every page costs each fork: so modules are imported by whoever needs them, and what
is imported here is small.
"""

from sandbox.kernel.clear import empty, remove_tree
from sandbox.kernel.memfd import make_memfd, new_memfd, read_all, seal_memfd
from sandbox.kernel.orphan_cleanup import group_name, remove_run_directory, reserve_directory

__all__ = [
    "cgroup",
    "empty",
    "group_name",
    "inherited",
    "landlock",
    "linux",
    "make_memfd",
    "new_memfd",
    "procfs",
    "read_all",
    "remove_run_directory",
    "remove_tree",
    "reserve_directory",
    "seal_memfd",
    "seccomp",
    "uids",
]
