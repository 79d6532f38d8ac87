"""Source → artefact, and source × kind of problem → unit to compile.

Consumes  a program; produces an artefact, kept by content
Waits for the compiler, which runs in the jail
Woken by  its end, or its limit
"""

from sandbox.build import units
from sandbox.build.builder import Build, Builder
from sandbox.build.units import compose

__all__ = ["Build", "Builder", "compose", "units"]
