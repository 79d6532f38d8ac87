"""Python programs that keep their state between calls, and programs of several files that run once.

Consumes  the code of a call; produces its Output
Waits for a slot, then for the program's answer or its end
Woken by  either, or by a limit; cancelling a call ends the program
"""

from sandbox.session.files import Finished
from sandbox.session.output import Ended, Output
from sandbox.session.sessions import ProgramSession, Sessions

__all__ = ["Ended", "Finished", "Output", "ProgramSession", "Sessions"]
