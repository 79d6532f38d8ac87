"""What users hook into a run: callbacks, called in a thread of their own.

Consumes  the events of a run; produces what callbacks ask for: Stop, Save, Evaluate
Waits for the callbacks, each event at most ``run.stall_s``
Woken by  the run, between two steps
"""
