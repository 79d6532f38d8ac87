"""Starting, calling and ending processes.

What for: a process that we start ends with us, however we end. :class:`ChildProcesses` holds the processes that belong
together, :class:`Peer` calls one of them, ``process_tree`` binds a process to its parent and kills whole trees, and the
reaper, a process outside, kills and removes what a killed driver leaves. Knows nothing of engines, learners or
programs.
"""

from overlap.process import process_tree, subreaper
from overlap.process.calls import (
    CANCEL,
    CallServer,
    PackedCall,
    Peer,
    RemoteCall,
    RemoteFault,
    RemoteReply,
    connect,
    decode_message,
    encode_message,
    pack_call,
    read_message,
    receive_message,
    serve_until_hung_up,
)
from overlap.process.child_processes import ChildProcesses, describe_exit, is_vague, log_hint
from overlap.process.interrupts import SIGNALS, Interrupts, exit_code, handle_interrupts, import_whole
from overlap.process.process_tree import (
    Pid,
    alive,
    bind_to_parent,
    identify,
    is_tracker,
    kill_tree,
    leave,
    list_descendants,
    open_pidfd,
    read_proc,
    unreaped_exit_status,
)
from overlap.process.reaper import Reaper
from overlap.process.run_environment import (
    LIFE,
    PARENT,
    RUN,
    child_environment,
    name_shared,
    remove_exports,
    run_name,
    shared_memory_names,
)
from overlap.process.scratch import run_to_end, scratch_directory, temporary_directory

__all__ = [
    "CANCEL",
    "LIFE",
    "PARENT",
    "RUN",
    "SIGNALS",
    "CallServer",
    "ChildProcesses",
    "Interrupts",
    "PackedCall",
    "Peer",
    "Pid",
    "Reaper",
    "RemoteCall",
    "RemoteFault",
    "RemoteReply",
    "alive",
    "bind_to_parent",
    "child_environment",
    "connect",
    "decode_message",
    "describe_exit",
    "encode_message",
    "exit_code",
    "handle_interrupts",
    "identify",
    "import_whole",
    "is_tracker",
    "is_vague",
    "kill_tree",
    "leave",
    "list_descendants",
    "log_hint",
    "name_shared",
    "open_pidfd",
    "pack_call",
    "process_tree",
    "read_message",
    "read_proc",
    "receive_message",
    "remove_exports",
    "run_name",
    "run_to_end",
    "scratch_directory",
    "serve_until_hung_up",
    "shared_memory_names",
    "subreaper",
    "temporary_directory",
    "unreaped_exit_status",
]
