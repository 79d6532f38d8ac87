"""Life and death of processes.

What for: a process that we start ends with us, however we end. A tree of processes has one :class:`Life`, is called
through a :class:`Peer`, is bound to its parent (``process_tree``), and a reaper outside kills and removes what a killed
driver leaves. Knows nothing of engines, learners or programs.
"""

from overlap.process import process_tree, subreaper
from overlap.process.calls import (
    CANCEL,
    Call,
    Message,
    Peer,
    RemoteFault,
    Reply,
    Writer,
    connect,
    decode,
    encode,
    message,
    read,
    receive,
)
from overlap.process.interrupts import SIGNALS, Interrupts, exit_code, interruptible
from overlap.process.life import Life, ended, see
from overlap.process.process_tree import (
    Pid,
    alive,
    bind_to_parent,
    descendants,
    exit_status,
    identify,
    is_tracker,
    kill_tree,
    leave,
    read_proc,
)
from overlap.process.reaper import Reaper
from overlap.process.run_environment import LIFE, PARENT, RUN, environment, name_shared, run_name, shared
from overlap.process.scratch import run_to_end, scratch_directory

__all__ = [
    "CANCEL",
    "LIFE",
    "PARENT",
    "RUN",
    "SIGNALS",
    "Call",
    "Interrupts",
    "Life",
    "Message",
    "Peer",
    "Pid",
    "Reaper",
    "RemoteFault",
    "Reply",
    "Writer",
    "alive",
    "bind_to_parent",
    "connect",
    "decode",
    "descendants",
    "encode",
    "ended",
    "environment",
    "exit_code",
    "exit_status",
    "identify",
    "interruptible",
    "is_tracker",
    "kill_tree",
    "leave",
    "message",
    "name_shared",
    "process_tree",
    "read",
    "read_proc",
    "receive",
    "run_name",
    "run_to_end",
    "scratch_directory",
    "see",
    "shared",
    "subreaper",
]
