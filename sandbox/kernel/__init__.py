"""Linux facilities to confine and clean up: system calls, filters, cgroups, sealed memory, uids.

A jail's processes import this, and every page costs each fork: so modules are imported where they are needed, and what
is imported here is small.
"""
