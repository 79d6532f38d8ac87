"""Program × problem → judgement, outside every jail.

Consumes  a program and its problem; produces a Judgement
Waits for the jail, case by case
Woken by  the end of a run, by any cause
"""
