"""Linux facilities to confine and clean up: system calls, filters, cgroups, sealed memory, uids.

Functions are imported on first use: a jail's processes import only what they need, because every page costs each fork.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandbox.kernel import cgroup, landlock, linux, procfs, seccomp, uids
    from sandbox.kernel.clear import empty, remove_tree
    from sandbox.kernel.memfd import make_memfd, new_memfd, read_all, seal_memfd
    from sandbox.kernel.orphan_cleanup import group_name, remove_run_directory, reserve_directory
else:
    from sandbox.lazy import names

    __getattr__ = names(
        __name__,
        {
            "clear": ("empty", "remove_tree"),
            "memfd": ("make_memfd", "new_memfd", "read_all", "seal_memfd"),
            "orphan_cleanup": ("group_name", "remove_run_directory", "reserve_directory"),
        },
    )

__all__ = [
    "cgroup",
    "empty",
    "group_name",
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
