"""Python programs that keep their state between calls, and programs of several files that run once."""

from sandbox.session.files import Finished
from sandbox.session.output import Ended, Output
from sandbox.session.sessions import ProgramSession, Sessions

__all__ = ["Ended", "Finished", "Output", "ProgramSession", "Sessions"]
