"""The small process inside the jail: it confines itself once, forks a child per run, and watches it.

Used only through sandbox.jail, except that the doctor tries the namespaces.
"""
