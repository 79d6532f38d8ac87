"""Starting, calling and ending processes.

Purpose: a process that we start ends with us, however we end. :class:`ChildProcesses` holds the processes that belong
together, :class:`Peer` calls one of them, ``process_tree`` binds a process to its parent and kills whole trees, and the
reaper, a process outside, kills and removes what a killed driver leaves. Knows nothing of engines, learners or
programs.
"""
