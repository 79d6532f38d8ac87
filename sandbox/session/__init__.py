"""Python programs that keep their state between calls, programs of several files that run once, and commands in one
working directory."""

from sandbox.session.commands import CommandJail
from sandbox.session.files import Finished
from sandbox.session.output import Ended, Output
from sandbox.session.sessions import ProgramSession, Sessions
from sandbox.session.workspace import Workspace

__all__ = ["CommandJail", "Ended", "Finished", "Output", "ProgramSession", "Sessions", "Workspace"]
