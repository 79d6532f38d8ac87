"""Reward functions in the manner of published graders, to show what `sandbox check-reward` finds. None is to be used.

in_process   runs the program in the grader's own process, with a mocked stdin
relaxed      runs a process per test, ignores its exit code, and tries one generous comparison after the other
exit_code    appends the asserts to the program, and pays for exit code 0
ours         `sandbox.judge`

sandbox check-reward recipes.reward_examples.in_process:reward
"""
