"""Many judgements at the same time.

Consumes  programs and problems; produces a Judgement each, or raises SandboxError
Waits for a slot in the queue, then for the supervisor's answer
Woken by  either; cancelling it cancels the job
"""
