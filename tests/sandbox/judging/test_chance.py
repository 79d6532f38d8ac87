"""What decides about a program draws what no program foresees; a program draws the same in every run of a case."""

from __future__ import annotations

import pytest
from asserting import LIMITS, asserts, stdio

from sandbox import Case, Problem, Program, Verdict
from sandbox.judging.judge import Judge

DRAWS = [
    "secret = random.randint(1, 10**9)",
    "secret = random.Random(int(time.time())).random()",
    "random.seed(int(time.time()))\nsecret = random.random()",
    "secret = sorted(random.sample(range(10**6), 5))",
]
OF_REFEREES = [
    "secret = uuid.getnode()",
    "secret = hash('text')",
    "secret = random.Random(str(int(time.time()))).random()",
    "secret = int(time.monotonic())",
    "secret = time.ctime()[:-8]",
    "secret = time.strftime('%j %H %M')",
]  # a test has the hashes of its program, as in one process
IMPORTS = "import random, sys, time, uuid\n"
CHECKER = "{}sys.exit(0 if open(sys.argv[2]).read().strip() == str(secret) else 1)"
INTERACTOR = "{}print('begin', flush=True)\nsys.exit(0 if input() == str(secret) else 1)"
COMPILED = """
#include <chrono>
#include <random>
#include <sys/time.h>
#include <iostream>
#include <string>
#include <cstdlib>
#include <ctime>
int main() {
    DRAW;
    if (ASKS) std::cout << "begin" << std::endl;
    std::string said;
    std::cin >> said;
    if (!ASKS) std::cout << secret << std::endl;
    return ASKS && said != std::to_string(secret);
}
"""


@pytest.mark.promise("secret-seeds")
@pytest.mark.parametrize("draw", DRAWS + OF_REFEREES)
def test_no_program_foresees_what_a_checker_or_an_interactor_draws(tiered_judge: Judge, draw: str) -> None:
    draw = f"{IMPORTS}{draw}\n"
    checker = Program(CHECKER.format(draw))
    done = stdio(tiered_judge, f"{draw}print(secret)", ("", "-"), compare="checker", checker=checker)
    assert done.verdict is Verdict.WA
    interactor = Program(INTERACTOR.format(draw))
    problem = Problem("p", "interactive", (Case("", "-"),), interactor=interactor, limits=LIMITS)
    assert tiered_judge.judge(problem, Program(f"{draw}input()\nprint(secret)")).verdict is Verdict.WA


@pytest.mark.promise("secret-seeds")
@pytest.mark.parametrize("draw", ["long secret = rand()", "srand(time(nullptr)); long secret = rand()",
                                  "long secret = lrand48()", "long secret = std::mt19937(std::time(0))()",
                                  "using C = std::chrono::system_clock; long secret = C::to_time_t(C::now())",
                                  "timeval now; gettimeofday(&now, 0); long secret = now.tv_sec"])  # fmt: skip
def test_no_program_foresees_what_an_interactor_in_another_language_draws(judge: Judge, draw: str) -> None:
    program, interactor = (
        Program(COMPILED.replace("DRAW", draw).replace("ASKS", asks), "cpp") for asks in ("false", "true")
    )
    problem = Problem("p", "interactive", (Case("", "-"),), interactor=interactor, limits=LIMITS)
    assert judge.judge(problem, program).verdict is Verdict.WA


@pytest.mark.promise("secret-seeds")
@pytest.mark.parametrize("draw", DRAWS)
def test_no_program_foresees_what_its_test_draws(tiered_judge: Judge, draw: str) -> None:
    test = f"{IMPORTS}{draw}\nfor k in (1,): assert f(secret) == secret"
    assert asserts(tiered_judge, "def f(x): return x", test, fn_name="f").verdict is Verdict.AC
    drawing = draw.replace("\n", "\n  ")
    done = asserts(tiered_judge, f"{IMPORTS}def f(x):\n  {drawing}\n  return secret", test, fn_name="f")
    assert done.verdict is Verdict.WA or done.weak  # beside the program, both may seed anew by the clock


@pytest.mark.parametrize("secret", ["int(random.random() * 1e9)", "[random.random()]", "str(time.time())"])
def test_what_the_preamble_draws_is_one_for_the_program_and_its_test(judge: Judge, secret: str) -> None:
    above, test = f"import random, time\nSECRET = {secret}", "for k in (1,): assert f() == SECRET"
    done = asserts(judge, "def f(): return SECRET", test, preamble=above, fn_name="f")
    assert (done.verdict, done.weak) == (Verdict.AC, True)


def test_a_seed_of_the_tests_own_gives_what_it_gives_in_python(judge: Judge) -> None:
    test = "import random\nrandom.seed(42)\nfor k in (1,): assert random.randint(1, 100) == f(k) == 82"
    assert asserts(judge, "def f(x): return 82", test, fn_name="f").verdict is Verdict.AC


TWICE = """
import os, sys
said, old = sys.stdin.read(), sys.argv[3] + "old.txt"
if os.path.exists(old):
    sys.exit(43 if open(old).read() == said else 42)
open(old, "w").write(said)
open(sys.argv[3] + "nextpass.in", "w").write("again")
sys.exit(42)
"""


def test_a_program_draws_the_same_in_every_run_but_not_in_the_next_pass(judge: Judge) -> None:
    source = "import random\nprint(random.random())"
    first = stdio(judge, source, ("", "-")).cases[0].got
    assert first is not None
    assert first == stdio(judge, source, ("", "-")).cases[0].got
    how = {"compare": "checker", "checker": Program(TWICE), "convention": "kattis", "passes": 2}
    assert stdio(judge, source, ("", "-"), **how).verdict is Verdict.AC
    assert stdio(judge, "print(1)", ("", "-"), **how).verdict is Verdict.WA
