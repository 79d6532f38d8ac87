"""Custom checkers: they decide, in a run of their own. What they fall over is the program's fault or their author's."""

from __future__ import annotations

from pathlib import Path

import pytest
from wide import wide

from sandbox import Case, CheckerError, Judgement, Limits, Problem, Program, Verdict
from sandbox.core.nouns import MIB
from sandbox.judging.judge import Judge
from sandbox.zygote.become_program import _check_files

LIMITS = Limits(cpu_s=3, wall_s=60)
SUMS = (Case("7"), Case("10"))

# Any two numbers with the given sum. testlib convention.
SUM_OF_TWO = Program("""
import sys
given, output, answer = (open(name).read().split() for name in sys.argv[1:])
try:
    a, b = map(int, output)
except ValueError:
    sys.exit(2)
sys.exit(0 if a + b == int(given[0]) else 1)
""")
SUM_OF_TWO_CPP = Program(
    """
#include <fstream>
#include <iostream>
int main(int, char **argv) {
    std::ifstream given(argv[1]);
    long want, a, b;
    given >> want;
    if (!(std::cin >> a >> b)) return 43;
    std::ofstream(std::string(argv[3]) + "/judgemessage.txt") << "seen";
    return a + b == want ? 42 : 43;
}
""",
    "cpp",
)
CONVENTIONS = [("testlib", SUM_OF_TWO), wide("kattis", SUM_OF_TWO_CPP)]
NAIVE = Program("import sys\nout, ans = (int(open(n).read().split()[0]) for n in sys.argv[2:])\nsys.exit(out != ans)")
NAIVE_KATTIS = Program(
    "import sys\nout, ans = int(sys.stdin.read()), int(open(sys.argv[2]).read())\nsys.exit(42 + (out != ans))"
)
# Says accepted where it cannot read: ifstream's failure is ignored.
CARELESS = Program(
    """
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>
int main(int, char **argv) {
    std::ifstream out(argv[2]), ans(argv[3]);
    std::vector<long> found;
    for (long x; out >> x;) found.push_back(x);
    if (ans && found.empty()) abort();
    for (long x, k = 0; ans >> x; k++) if (found[k] != x) return 1;
    return 0;
}
""",
    "cpp",
)
CHECKERS = [(NAIVE, "testlib"), (NAIVE_KATTIS, "kattis"), (CARELESS, "testlib")]


def checked(judge: Judge, source: str, checker: Program, *cases: Case, **fields: object) -> Judgement:
    options = {"limits": LIMITS, "compare": "checker", "checker": checker, **fields}
    problem = Problem("p", "stdio", cases or (Case("1", "8"),), **options)  # type: ignore[arg-type]
    return judge.judge(problem, Program(source))


@pytest.mark.promise("checkers")
@pytest.mark.parametrize(("convention", "checker"), CONVENTIONS)
@pytest.mark.parametrize(
    ("source", "verdict"),
    [
        ("n = int(input()); print(1, n - 1)", Verdict.AC),
        ("n = int(input()); print(n + 5)\nprint(-5)", Verdict.AC),
        ("print(3, 4)", Verdict.WA),
        ("print('no number')", Verdict.WA),
        ("pass", Verdict.WA),
        ("n = int(input()); print(1, n - 1); 1 / 0", Verdict.RE),
        ("n = int(input()); print(1, n - 1, flush=True)\nwhile True: pass", Verdict.TLE),
        ("1 +", Verdict.CE),
    ],
)
def test_the_checker_decides_about_clean_ends_only(
    judge: Judge, convention: str, checker: Program, source: str, verdict: Verdict
) -> None:
    limits = Limits(cpu_s=0.3, wall_s=30)
    assert checked(judge, source, checker, *SUMS, convention=convention, limits=limits).verdict is verdict


@pytest.mark.promise("checkers")
def test_the_checker_gets_input_output_and_answer(judge: Judge) -> None:
    checker = Program(
        "import sys\ntexts = [open(name, 'rb').read() for name in sys.argv[1:]]\n"
        "sys.exit(0 if texts == [b'in \\xc3\\xa9', b'out\\xff', b'ans'] else 1)"
    )
    source = "import sys; sys.stdout.buffer.write(b'out\\xff')"
    assert checked(judge, source, checker, Case("in é", "ans")).verdict is Verdict.AC
    assert checked(judge, source, checker, Case("in é", "other")).verdict is Verdict.WA


@pytest.mark.promise("checkers")
@pytest.mark.parametrize(("code", "verdict"), [(0, "AC"), (1, "WA"), (2, "WA"), (4, "WA"), (8, "WA")])
def test_the_exit_codes_of_testlib(judge: Judge, code: int, verdict: str) -> None:
    assert checked(judge, "print(1)", Program(f"import sys; sys.exit({code})")).verdict == verdict


@pytest.mark.promise("our-faults")
@pytest.mark.parametrize(
    ("convention", "checker", "word"),
    [
        ("testlib", Program("1 +"), "does not compile"),
        ("testlib", Program("int main() { return x; }", "cpp"), "does not compile"),
        ("testlib", Program("1 / 0"), "ZeroDivisionError"),
        ("testlib", Program("import sys; sys.exit(3 if open(sys.argv[2]).read() == '1\\n' else 0)"), "exit code 3"),
        ("testlib", Program("import sys; sys.exit(42)"), "exit code 42, which has no meaning"),
        ("testlib", Program("import sys; sys.exit(7)"), "exit code 7, by which testlib gives a part of the points"),
        ("testlib", Program("import sys; sys.exit(66)"), "exit code 66, by which testlib gives a part of the points"),
        ("kattis", Program("import sys; sys.exit(0)"), "exit code 0"),
        ("kattis", Program("import sys; sys.exit(7)"), "exit code 7, which has no meaning"),
        ("kattis", Program("import sys; sys.exit(1)"), "exit code 1"),
        ("testlib", Program("#include <cstdlib>\nint main() { abort(); }", "cpp"), "signal 6"),
        ("testlib", Program("import os; os.fork(); os.setuid(0)"), "raised|stopped"),
    ],
)
def test_a_checker_that_fails_is_our_error_and_no_verdict(
    judge: Judge, convention: str, checker: Program, word: str
) -> None:
    with pytest.raises(CheckerError, match=word):
        checked(judge, "print(1)", checker, convention=convention)


SCORER = Program("""
import os, sys
given, answer, output = (open(name, errors='replace').read().strip() for name in sys.argv[1:])
if output == 'last words':
    print('a score of', 1)
elif output == 'two scores':
    print(0, 1, sep='\\n')
elif output == 'ended early':
    print(0)
    os._exit(0)
elif output == 'ended later':
    print(1, flush=True)
    sys.exit(1)
elif output == 'raises':
    print(1, flush=True)
    raise ValueError
print({'hundred': 100, 'float': '1.0', 'half': 0.5, 'eight': 8, 'quoted': output}.get(output, int(output == answer)))
""")


@pytest.mark.parametrize(
    ("said", "verdict", "word"),
    [
        *((said, "AC", "") for said in ("\N{ROCKET}", "hundred", "float")),
        *((said, "WA", "wrong, says the checker") for said in ("other", "half", "eight")),
        *((said, "WA", "printed no score") for said in ("last words", "two scores", "ended early", "quoted")),
        ("ended later", "WA", "exit code 1"),
        ("raises", "WA", "raised an exception"),
    ],
)
def test_all_that_a_checker_prints_is_its_score(judge: Judge, said: str, verdict: str, word: str) -> None:
    program = f"print({said!a})"
    done = checked(judge, program, SCORER, Case("", "\N{ROCKET}"), convention="score")
    assert (done.verdict, word in done.cases[0].message) == (verdict, True), done.cases[0].message


@pytest.mark.parametrize("source", ["print(1, 'x')", "pass", "print(True)", "print('nan')", "import os; os._exit(0)"])
def test_a_checker_that_prints_no_score_is_our_error(judge: Judge, source: str) -> None:
    with pytest.raises(CheckerError, match="printed no score"):
        checked(judge, "print(1)", Program(source), convention="score")


def test_files_that_do_not_fit_are_our_error(judge: Judge) -> None:
    with pytest.raises(CheckerError, match="has"):
        checked(judge, "print(1)", SUM_OF_TWO, Case("7" * (judge.jail.work_bytes + 1)))


@pytest.mark.promise("expected-outputs")
def test_the_answer_is_gone_before_the_program_runs_again(judge: Judge) -> None:
    source = (
        "import os\n"
        "found = [name for top, _, names in os.walk('.') for name in names]\n"
        "n = int(input()); print(1, n - 1 if found == ['main.py'] else 0)"
    )
    done = checked(judge, source, SUM_OF_TWO, Case("7", "NEEDLE"), Case("8", "NEEDLE"), Case("9", "NEEDLE"))
    assert (done.verdict, done.passed) == (Verdict.AC, 3)


# --- whose fault a failure is -----------------------------------------------------------------------------------------

HOSTILE = [
    "pass",
    "import os; os.write(1, b'9\\xff')",
    "print('x' * 70000)",
    "print('9' * 1_000_000)",
    "print('\\x00')",
    "import sys; sys.stdout.buffer.write(b'\\xed\\xa0\\x80 \\xff\\xfe')",
    "print('1e400')",
]


@pytest.mark.parametrize(
    ("source", "verdict"), [("print(8)", "AC"), ("print(9)", "WA"), *((source, "WA") for source in HOSTILE)]
)
@pytest.mark.parametrize(("checker", "convention"), CHECKERS)
def test_a_checker_that_falls_over_an_output_says_that_it_is_wrong(
    judge: Judge, source: str, verdict: str, checker: Program, convention: str
) -> None:
    done = checked(judge, source, checker, convention=convention)
    assert done.verdict == verdict
    assert "8" not in done.cases[0].message  # the answer


def test_the_message_says_how_the_checker_ended(judge: Judge) -> None:
    assert "raised an exception" in checked(judge, "print('x')", NAIVE).cases[0].message
    assert "signal 6" in checked(judge, "pass", CARELESS).cases[0].message


@pytest.mark.parametrize("expected", ["x", ""])
def test_a_checker_that_falls_over_the_expected_answer_too_is_our_error(judge: Judge, expected: str) -> None:
    with pytest.raises(CheckerError, match=r"invalid literal|out of range"):
        checked(judge, "print('x')", NAIVE, Case("1", expected))


def test_without_an_expected_answer_a_plain_output_tells_whose_fault_it_is(judge: Judge) -> None:
    alone = Program("import sys\nsys.exit(int(open(sys.argv[2]).read()) % 2)")
    assert checked(judge, "print('x')", alone, Case("1")).verdict is Verdict.WA
    with pytest.raises(CheckerError, match="KeyError"):
        checked(judge, "print(1)", Program("{}[open]"), Case("1"))


def test_a_checker_that_an_output_keeps_too_long_says_wrong(judge: Judge) -> None:
    limits = Limits(cpu_s=0.3, wall_s=30)
    slow = Program("import sys\nwhile open(sys.argv[2]).read() != open(sys.argv[3]).read(): pass")
    assert checked(judge, "print(9)", slow, referee_limits=limits).verdict is Verdict.WA


def test_an_output_that_does_not_fit_beside_the_checkers_files_is_the_programs(judge: Judge) -> None:
    limits = Limits(cpu_s=5, wall_s=60, output_bytes=90 * MIB, file_bytes=90 * MIB)
    case = Case("7" * (40 * MIB), "8")
    source = "import sys\nfor _ in range(80): sys.stdout.write('x' * (1 << 20))"
    assert checked(judge, source, CARELESS, case, limits=limits).verdict is Verdict.OLE


ROBBERS = {
    "modes": "import os\nfor p in ('.', '/proc/self/exe', '/proc/self/cwd'):\n"
    "    try: os.chmod(p, 0)\n"
    "    except OSError: pass",
    "list": "import os, struct\n"
    "rows = [(1, 7, -1), (2, 0, os.getuid()), (4, 7, -1), (16, 7, -1), (32, 0, -1)]\n"
    "acl = struct.pack('<I', 2) + b''.join(struct.pack('<HHi', *row) for row in rows)\n"
    "for name in ('default', 'access'):\n"
    "    try: os.setxattr('.', 'system.posix_acl_' + name, acl)\n"
    "    except OSError: pass",
    "names": "import os\nfor n in ('input.txt', 'output.txt', 'answer.txt'): os.makedirs(n + '/x')",
    "full": "try:\n    with open('x', 'wb') as f:\n        for _ in range(60): f.write(bytes(1 << 20))\n"
    "except OSError: pass",
    "links": "import os\nfor n in ('input.txt', 'output.txt', 'answer.txt'): os.symlink('/dev/null', n)",
}


@pytest.mark.parametrize("robber", ROBBERS)
def test_no_program_takes_a_file_from_the_checker(tiered_judge: Judge, robber: str) -> None:
    source = ROBBERS[robber] + "\nprint(7)"
    before = tiered_judge.jail.partner(fixed_hashes=False).runs
    for _ in range(2):
        assert checked(tiered_judge, source, CARELESS).verdict is Verdict.WA
    assert checked(tiered_judge, "print(8)", CARELESS).verdict is Verdict.AC
    assert tiered_judge.jail.partner(fixed_hashes=False).runs >= before + 3  # it is asked where no program has ever run


def test_what_is_not_as_it_was_placed_is_our_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    request = {"files": [["answer.txt", 0, 6]]}
    with pytest.raises(FileNotFoundError):
        _check_files(request)
    Path("answer.txt").write_bytes(b"ans")
    with pytest.raises(OSError, match="differs from what was written"):
        _check_files(request)
    Path("answer.txt").write_bytes(b"answer")
    _check_files(request)


def test_the_program_leaves_nothing_for_the_checker(judge: Judge) -> None:
    source = "open('json.py', 'w').write('import os; os._exit(0)'); open('output.txt', 'w').write('1 6'); print(0, 0)"
    checker = Program("import json\n" + SUM_OF_TWO.source)
    assert checked(judge, source, checker, *SUMS).verdict is Verdict.WA
