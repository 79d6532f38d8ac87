"""Hooks of users into a run: callbacks, which may steer it, and trackers, which show its rows elsewhere.

Consumes  the events and rows of a run; produces what callbacks ask for (Stop, Save, Evaluate) and what trackers show
Waits for the callbacks, each event at most ``run.stall_s``; for no tracker, except a bounded time at start and end
Woken by  the run, between two steps
"""
