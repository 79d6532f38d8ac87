"""The files that a run writes into its directory, and the lines that it prints.

Consumes  finished steps, and the calls of generator and verifier; produces the run directory and lines of the terminal
Waits for the disk, in a thread
Woken by  the training loop, once per step
"""
