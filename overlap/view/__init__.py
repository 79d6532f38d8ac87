"""Shows a run's samples to people: on the terminal (``overlap show``) and in a browser (``overlap view``).

Consumes  a run directory, also of a run that goes on, or a file of answers; produces lines, or a page on the loopback
Waits for the disk, and for requests
Woken by  a person
"""
