"""Source → artefact, and source × kind of problem → unit to compile.

Consumes  a program; produces an artefact, kept by content
Waits for the compiler, which runs in the jail
Woken by  its end, or its limit
"""
