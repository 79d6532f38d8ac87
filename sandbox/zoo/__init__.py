"""The hack zoo: hostile programs that get a reward from a careless grader, each beside an honest twin.

    Entry = problem + attacks (never to be accepted) + honest programs by similar means (always to be accepted)

One entry, or more, for each row of the catalogue of reward hacks that the tests count (1 to 55). An attack says which
verdicts are right, the `cause` that our judge must name, which is the mechanism that blocked it, and which careless
graders it `fools` (recipes/reward_examples, naive.py of the tests: they run it there and see it paid).
Rows that no program can act out name the test that attacks our own process: `own_test`, of the zoo's own tests.
"""
