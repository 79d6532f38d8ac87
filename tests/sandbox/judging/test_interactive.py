"""Interactive problems: two runs at the same time, and the blame where it belongs."""

from __future__ import annotations

import os
import select
import threading
from pathlib import Path

import pytest
from toolchains import need

from sandbox import Case, CheckerError, Judgement, Limits, Problem, Program, SandboxError, Verdict
from sandbox.build.builder import Builder
from sandbox.core.nouns import MIB, Isolation
from sandbox.jail.jail import Jail
from sandbox.judging.judge import Judge

LIMITS = Limits(cpu_s=0.5, wall_s=20, output_bytes=MIB)
BRIEF = Limits(cpu_s=1, wall_s=0.4)
PATIENT = Limits(cpu_s=5, wall_s=60)

# Reads the secret number, answers guesses, allows ten of them; exit 1 is wrong, 0 accepted.
GUESS = """
import sys
secret = int(open(sys.argv[1]).read())
for _ in range(10):
    line = sys.stdin.readline()
    if not line.strip().lstrip('-').isdigit():
        sys.exit(1)
    guess = int(line)
    print('correct' if guess == secret else 'lower' if secret < guess else 'higher', flush=True)
    if guess == secret:
        sys.exit(0)
sys.exit(1)
"""
BISECT = """
low, high = 1, 1000
while True:
    middle = (low + high) // 2
    print(middle, flush=True)
    answer = input()
    if answer == 'correct':
        break
    low, high = (low, middle - 1) if answer == 'lower' else (middle + 1, high)
"""
BISECT_CPP = """
#include <iostream>
#include <string>
int main() {
    int low = 1, high = 1000;
    for (std::string answer; answer != "correct";) {
        int middle = (low + high) / 2;
        std::cout << middle << std::endl;
        std::cin >> answer;
        if (answer == "lower") high = middle - 1; else low = middle + 1;
    }
}
"""


def talk(
    judge: Judge, source: str, interactor: str = GUESS, *inputs: str, language: str = "python", **fields: object
) -> Judgement:
    options = {"limits": LIMITS, "interactor": Program(interactor), **fields}
    cases = tuple(Case(text) for text in inputs or ("1",))
    problem = Problem("guess", "interactive", cases, **options)  # type: ignore[arg-type]
    return judge.judge(problem, Program(source, language))


@pytest.mark.promise("interaction")
@pytest.mark.parametrize(("source", "language"), [(BISECT, "python"), (BISECT_CPP, "cpp")])
def test_a_right_conversation_is_accepted(judge: Judge, source: str, language: str) -> None:
    done = talk(judge, source, GUESS, "1", "500", "1000", "77", language=language)
    assert (done.verdict, done.passed) == (Verdict.AC, 4)
    assert all(case.cpu_s > 0 and case.memory_bytes > 0 for case in done.cases)


@pytest.mark.promise("interaction")
@pytest.mark.parametrize(
    ("source", "verdict"),
    [
        ("print(7)", Verdict.WA),
        ("print('x', flush=True); input()", Verdict.WA),
        ("", Verdict.CE),
        ("1 +", Verdict.CE),
        ("pass", Verdict.WA),
        ("for n in range(2, 20): print(n, flush=True); input()", Verdict.WA),
        ("print('x', flush=True)\nwhile True: pass", Verdict.WA),
        ("import sys; sys.exit(3)", Verdict.RE),
        ("1 / 0", Verdict.RE),
        ("print(1, flush=True); input(); 1 / 0", Verdict.RE),
        ("print(1, flush=True); input(); input()", Verdict.RE),
        ("print(1, flush=True); print(2, flush=True)", Verdict.AC),
        ("while True: pass", Verdict.TLE),
        ("print(1, flush=True)\nwhile True: pass", Verdict.TLE),
        ("import os; os.close(1); os.close(0)", Verdict.WA),
        ("import os; os.close(1)\nwhile True: pass", Verdict.TLE),
        ("import os; os.close(1); os.close(2); input(); 1 / 0", Verdict.RE),
        ("print('x', flush=True)\nwhile True: print('x')", Verdict.WA),
        ("import os\nif os.fork(): os.close(1)\nos.wait()", Verdict.WA),
        ("print(1, flush=True)\nwhile True: print(1)", Verdict.OLE),
        ("x = bytearray(400 << 20); print(1)", Verdict.MLE),
    ],
)
def test_each_way_to_fail_has_its_verdict(judge: Judge, source: str, verdict: Verdict) -> None:
    limits = Limits(cpu_s=0.5, wall_s=20, output_bytes=MIB, memory_bytes=128 * MIB)
    assert talk(judge, source or " ", limits=limits).verdict is verdict


CPP = "#include <cstdio>\n#include <cstdlib>\n#include <unistd.h>\nint main() { %s }"
JAVA = 'class Main { public static void main(String[] a) { System.out.println("x"); System.out.flush(); %s } }'
DEATHS = {
    "cpp: close, abort": ("cpp", CPP % "close(1); abort();", Verdict.RE),
    "cpp: close, exit": ("cpp", CPP % "close(1); exit(1);", Verdict.RE),
    "cpp: close, live on, exit": ("cpp", CPP % "close(1); usleep(99999); exit(1);", Verdict.RE),
    "cpp: close stdin, wrong, abort": ("cpp", CPP % 'close(0); puts("x"); fflush(stdout); abort();', Verdict.RE),
    "cpp: wrong, abort": ("cpp", CPP % 'puts("x"); fflush(stdout); abort();', Verdict.RE),
    "cpp: wrong, wait": ("cpp", CPP % 'puts("x"); fflush(stdout); getchar(); exit(1);', Verdict.WA),
    "python: close, _exit": ("python", "import os; os.close(1); os._exit(1)", Verdict.RE),
    "python: wrong, _exit": ("python", "import os; os.write(1, b'x\\n'); os._exit(1)", Verdict.RE),
    "python: wrong, memory": ("python", "print('x', flush=True); x = bytearray(1 << 30)", Verdict.MLE),
    "python: wrong, loop": ("python", "print('x', flush=True)\nwhile True: pass", Verdict.WA),
    "java: wrong, memory": ("java", JAVA % "int[][] x = new int[99][1 << 22];", Verdict.MLE),
}


@pytest.mark.parametrize("name", DEATHS)
def test_who_ended_whom_is_no_matter_of_chance(judge: Judge, name: str) -> None:
    language, source, verdict = DEATHS[name]
    need(language)
    limits = Limits(cpu_s=4, wall_s=60, memory_bytes=256 * MIB)
    times = 3 if name.startswith("java") or name.endswith("loop") else 60
    done = talk(judge, source, GUESS, *["1"] * times, language=language, limits=limits)
    assert [case.verdict for case in done.cases] == [verdict] * times


@pytest.mark.parametrize("source", ["input()", "print(5); input(); input()", "import time; time.sleep(99)"])
def test_waiting_for_what_never_comes_ends_at_the_wall_limit(judge: Judge, source: str) -> None:
    done = talk(judge, source, limits=BRIEF)
    assert done.verdict is Verdict.TLE
    assert "wall" in done.cases[0].message


@pytest.mark.promise("our-faults")
@pytest.mark.parametrize(
    ("interactor", "word"),
    [
        ("1 +", "does not compile"),
        ("1 / 0", "ZeroDivisionError"),
        ("import sys; sys.exit(3)", "exit code 3"),
        ("import sys; sys.exit(77)", "exit code 77"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9"),
        ("x = bytearray(2 << 30)", "memory limit"),
        ("import sys\nwhile True: print('x' * 9999)", "bytes to the program"),
    ],
)
def test_an_interactor_that_fails_is_our_error_and_no_verdict(judge: Judge, interactor: str, word: str) -> None:
    with pytest.raises(CheckerError, match=word):
        talk(judge, "while True: input()", interactor)


FRAGILE = "n = int(input())\nprint(n, flush=True)\nassert input() == 'end', 'NEEDLE'"
NEVER = "import sys\nwhile not sys.stdin.readline().strip() == 'end': pass"


@pytest.mark.parametrize(
    ("source", "interactor", "word"),
    [
        ("print('x')", FRAGILE, "raised an exception"),
        ("pass", FRAGILE, "raised an exception"),
        ("print(1); print(2)", FRAGILE, "raised an exception"),
        ("import os; os.write(1, b'1\\n\\xff\\n')", FRAGILE, "raised an exception"),
        ("print('9' * 200_000)", FRAGILE, "raised an exception"),
        ("print(1, flush=True); input(); print('no', flush=True); input()", FRAGILE, "raised an exception"),
        ("print(1)", "input(); import os; os.abort()", "signal 6"),
        ("print(1)", "input(); import sys; sys.exit(77)", "exit code 77"),
        ("print(1, flush=True)\nwhile True: input()", "input()\nwhile True: print('x' * 9999)", "bytes to the program"),
    ],
)
def test_an_interactor_that_falls_over_what_the_program_said_says_wrong(
    judge: Judge, source: str, interactor: str, word: str
) -> None:
    done = talk(judge, source, interactor, limits=Limits(cpu_s=4, wall_s=60))
    assert done.verdict is Verdict.WA
    assert word in done.cases[0].message
    assert "NEEDLE" not in done.cases[0].message


ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=line == 'end\\n')\n"
CHECKS_ECHO = """
import sys, threading
def speak():
    for n in range(100000): print(n)
    print('end', flush=True)
threading.Thread(target=speak).start()
read = sys.stdin.readline
ok = all(read() == f'{n}\\n' for n in range(100000)) and read() == 'end\\n'
sys.exit(0 if ok else 1)
"""
TALKS: dict[str, tuple[str, str, dict[str, object], Verdict]] = {
    "a flood that is read": (
        "while True: print('x' * 99)", "import sys\nfor line in sys.stdin: pass", {}, Verdict.OLE,
    ),
    "only the program's CPU time counts": (
        "print(1); input()", "import time\nwhile time.process_time() < 0.6: pass\n" + GUESS,
        {"limits": Limits(cpu_s=0.5, wall_s=60)}, Verdict.AC,
    ),
    "an early end that leaves the interactor in a loop": (
        "print(1)", NEVER, {"referee_limits": Limits(cpu_s=0.2, wall_s=60)}, Verdict.WA,
    ),
    "the end that the interactor waits for": (
        "print('end')", NEVER, {"referee_limits": Limits(cpu_s=0.2, wall_s=60)}, Verdict.AC,
    ),
    "long replies do not use up the interactor": (
        "for _ in range(10):\n    print(flush=True)\n    assert len(input()) == 200_000",
        "for _ in range(10):\n    input()\n    print('x' * 200_000, flush=True)",
        {"limits": PATIENT, "referee_limits": Limits(cpu_s=20, wall_s=60, output_bytes=300_000)}, Verdict.AC,
    ),
    "a side that hears nothing any more does not stop the other": (
        "import os; os.close(0); print(1, flush=True)\nfor _ in range(50000): print('x')\nprint('end')",
        "import sys\nfor n in range(50000): print(n)\nwhile sys.stdin.readline() != 'end\\n': pass",
        {"limits": PATIENT}, Verdict.AC,
    ),
    "a large transfer in both directions": (ECHO, CHECKS_ECHO, {"limits": PATIENT}, Verdict.AC),
}  # fmt: skip


@pytest.mark.parametrize("name", TALKS)
def test_a_conversation_of_an_odd_shape_has_the_verdict_of_its_end(judge: Judge, name: str) -> None:
    source, interactor, fields, verdict = TALKS[name]
    assert talk(judge, source, interactor, **fields).verdict is verdict


def test_the_interactors_own_word_for_its_fault_is_our_error(judge: Judge) -> None:
    with pytest.raises(CheckerError, match="exit code 3"):
        talk(judge, "print(1)", "input(); import sys; sys.exit(3)")


@pytest.mark.promise("interaction")
def test_the_kattis_convention_has_its_own_exit_codes_and_files(judge: Judge) -> None:
    interactor = (
        "import sys\n"
        "given, answer, feedback = sys.argv[1:]\n"
        "open(feedback + '/judgemessage.txt', 'w').write('x')\n"
        "print(open(given).read(), flush=True)\n"
        "sys.exit(42 if input() == open(answer).read() else 43)"
    )
    fields = {"interactor": Program(interactor), "convention": "kattis", "limits": LIMITS}
    problem = Problem("p", "interactive", (Case("3", "9"),), **fields)  # type: ignore[arg-type]
    assert judge.judge(problem, Program("print(int(input()) ** 2)")).verdict is Verdict.AC
    assert judge.judge(problem, Program("print(int(input()) * 2)")).verdict is Verdict.WA


def test_the_program_does_not_see_the_interactors_files(judge: Judge) -> None:
    source = (
        "import os, glob\n"
        "seen = glob.glob('/box/**', recursive=True) + os.listdir('.')\n"
        "print(1 if not any('txt' in name for name in seen) else 0)\ninput()"
    )
    assert talk(judge, source).verdict is Verdict.AC


def test_descriptors_and_threads_do_not_pile_up(judge: Judge) -> None:
    talk(judge, BISECT)
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for source in (BISECT, "1 / 0", "print(-1)", "print(1); print('x' * (2 << 20))"):
        talk(judge, source)
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


@pytest.mark.parametrize("tier", ["B", "C"])
def test_the_weaker_tiers_talk_as_well(tier: Isolation, tmp_path: Path) -> None:
    with Jail(tier) as jail:
        judge = Judge(jail, Builder(tmp_path / "build"))
        assert talk(judge, BISECT).verdict is Verdict.AC
        assert talk(judge, "print('x' * (2 << 20))").verdict in (Verdict.OLE, Verdict.WA)
        assert talk(judge, "1 / 0").verdict is Verdict.RE


def test_a_partner_that_fails_is_replaced(judge: Judge) -> None:
    partner = judge.jail.partner(fixed_hashes=False)
    partner.process.kill()
    select.select([partner._tree.control], [], [], 60)  # all of it is gone at the end of its stream
    with pytest.raises(SandboxError):
        talk(judge, BISECT)
    assert talk(judge, BISECT).verdict is Verdict.AC
