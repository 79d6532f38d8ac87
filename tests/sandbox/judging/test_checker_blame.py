"""A checker that fails: by what the program wrote, or by its author's fault. And one whose files a program is after."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox import Case, CheckerError, Judgement, Limits, Problem, Program, Verdict
from sandbox.core import MIB
from sandbox.judging.judge import Judge
from sandbox.zygote.become_program import _check_files

LIMITS = Limits(cpu_s=3, wall_s=60)
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


def checked(judge: Judge, source: str, checker: Program, *cases: Case, **fields: object) -> Judgement:
    options = {"limits": LIMITS, "compare": "checker", "checker": checker, **fields}
    problem = Problem("p", "stdio", cases or (Case("1", "8"),), **options)  # type: ignore[arg-type]
    return judge.judge(problem, Program(source))


HOSTILE = [
    "pass",
    "import os; os.write(1, b'9\\xff')",
    "print('x' * 70000)",
    "print('9' * 1_000_000)",
    "print('\\x00')",
    "import sys; sys.stdout.buffer.write(b'\\xed\\xa0\\x80 \\xff\\xfe')",
    "print('1e400')",
]


@pytest.mark.parametrize("source", HOSTILE)
@pytest.mark.parametrize(
    ("checker", "convention"), [(NAIVE, "testlib"), (NAIVE_KATTIS, "kattis"), (CARELESS, "testlib")]
)
def test_a_checker_that_falls_over_an_output_says_that_it_is_wrong(
    judge: Judge, source: str, checker: Program, convention: str
) -> None:
    done = checked(judge, source, checker, convention=convention)
    assert done.verdict is Verdict.WA
    assert "8" not in done.cases[0].message  # the answer


@pytest.mark.parametrize(("source", "verdict"), [("print(8)", "AC"), ("print(9)", "WA")])
@pytest.mark.parametrize(
    ("checker", "convention"), [(NAIVE, "testlib"), (NAIVE_KATTIS, "kattis"), (CARELESS, "testlib")]
)
def test_the_same_checkers_do_their_work(
    judge: Judge, source: str, verdict: str, checker: Program, convention: str
) -> None:
    assert checked(judge, source, checker, convention=convention).verdict == verdict


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


def test_a_checker_that_an_output_keeps_too_long_says_wrong(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.judging.referee.LIMITS", Limits(cpu_s=0.3, wall_s=30))
    slow = Program("import sys\nwhile open(sys.argv[2]).read() != open(sys.argv[3]).read(): pass")
    assert checked(judge, "print(9)", slow, Case("1", "8")).verdict is Verdict.WA


def test_the_authors_own_word_for_his_fault_is_our_error(judge: Judge) -> None:
    says = Program("import sys\nsys.exit(3 if open(sys.argv[2]).read().strip() == '9' else 0)")
    with pytest.raises(CheckerError, match="exit code 3"):
        checked(judge, "print(9)", says)


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
    before = tiered_judge.jail.partner().runs
    for _ in range(2):
        assert checked(tiered_judge, source, CARELESS).verdict is Verdict.WA
    assert checked(tiered_judge, "print(8)", CARELESS).verdict is Verdict.AC
    assert tiered_judge.jail.partner().runs >= before + 3  # it is asked where no program has ever run


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
