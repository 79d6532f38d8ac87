"""Rewards: of judgements, of answers for other trainers, and `sandbox check-reward`, which tests any reward function.

CodeReward       a plain callable: answer, tests ──▶ 1 or 0        trl, verl    the same as these trainers call it
styles           how functions of other trainers are called        check        wrong rewards, hangs, leaks
"""
