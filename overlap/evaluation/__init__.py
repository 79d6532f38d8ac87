"""Evaluate a policy: pass@k with an interval, over the course of a run; which problems it can learn from, and whether
they judge rightly.

Consumes  prompts, by generator and verifier; produces a PassRate, ``policy-best/``, or a filtered problem file
Waits for the generator and the verifier
Woken by  their results
"""
