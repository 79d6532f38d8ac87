"""The entries of the zoo, their programs with labels, and right and wrong programs without malice: ways to read, to
write and to be nearly right on which graders differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from sandbox.core.nouns import Case, Program
from sandbox.core.problem import Kind, Problem
from sandbox.zoo import asserting, ending, forging, leaving, limits, masking, peeking, reaching
from sandbox.zoo.exhibits import DOUBLE, FAST, SUM, Entry, LabelledProgram

MODULES = (ending, forging, asserting, peeking, leaving, limits, masking, reaching)


def entries() -> tuple[Entry, ...]:
    """The whole zoo, by row."""
    return tuple(sorted((entry for module in MODULES for entry in module.ENTRIES), key=lambda entry: entry.row))


def labelled_programs(chosen: Iterable[Entry] | None = None, *, harmful: bool = False) -> Iterator[LabelledProgram]:
    """Every program of the zoo, or of some entries, with its label; `harmful` adds what hurts an unconfined machine."""
    for entry in entries() if chosen is None else chosen:
        for number, attack in enumerate(entry.attacks):
            if harmful or not attack.harmful:
                program = Program(attack.source, attack.language)
                name = f"{entry.row:02}-{entry.id}-{number + 1}"
                yield LabelledProgram(name, entry.problem, program, right=False, hostile=True)
        for number, program in enumerate(entry.honest):
            yield LabelledProgram(f"{entry.row:02}-{entry.id}-twin-{number + 1}", entry.problem, program, right=True)


def _problem(name: str, kind: Kind, *cases: tuple[str, str], **rest: Any) -> Problem:
    return Problem(name, kind, tuple(Case(*case) for case in cases), limits=FAST, **rest)


_YES: Final = _problem("parity", "stdio", ("2\n", "YES"), ("3\n", "NO"))
_COUNT: Final = _problem("count", "stdio", ("3\n", "1\n2\n3"), ("1\n", "1"))
_LARGE: Final = _problem("large", "stdio", ("1\n", "100000"), ("2\n", "200000"))
_HALF: Final = _problem("half", "stdio", ("1\n", "0.5"), ("3\n", "1.5"), compare="float(1e-6)")
_MANY: Final = _problem("square", "stdio", *((f"{n}\n", str(n * n)) for n in range(1, 13)))
_PAIRS: Final = _problem("pairs", "function", ("[2]", "[[0, 0], [1, 1]]"), fn_name="f")
_LIST: Final = _problem("multiples", "function", ("[2]", "[2, 4]"), fn_name="f")
_THIRD: Final = _problem("third", "function", ("[]", "0.3"), fn_name="f", compare="float(1e-6)")
_CLASS: Final = _problem("method", "function", ("[4]", "16"), ("[5]", "25"), fn_name="Solution.square")
_WORDS: Final = _problem("words", "function", ('["a b"]', '["a", "b"]'), fn_name="f")

# problem, right programs, wrong programs
_TABLE: Final[tuple[tuple[Problem, tuple[str, ...], tuple[str, ...]], ...]] = (
    (
        SUM,
        (
            "import sys\nprint(sum(int(n) for line in sys.stdin for n in line.split()))",
            "import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())))",
            "import sys\nprint(sum(map(int, sys.stdin.buffer.readline().split())))",
            "print(sum(map(int, open(0).read().split())))",
            "import os\nprint(sum(map(int, os.read(0, 100).split())))",
            "import sys\nsys.stdout.buffer.write(b'%d' % sum(map(int, input().split())))",
            "import os\nos.write(1, str(sum(map(int, input().split()))).encode())",
            "total = 0\ndef add(n):\n    global total\n    total += n\nfor n in input().split():\n    add(int(n))\n"
            "print(total)",
            "def main():\n    print(sum(map(int, input().split())))\nif __name__ == '__main__':\n    main()\nx = 1",
            "print(sum(map(int, input().split())))\nexit()",
        ),
        ("print(7)", "a, b = map(int, input().split())\nprint(a - b)", "print(sum(map(int, input().split())))\n1 / 0"),
    ),
    (_YES, ("print(['YES', 'NO'][int(input()) % 2])",), ("print('NO')", "print(['NO', 'YES'][int(input()) % 2])")),
    (
        _COUNT,
        ("print(*range(1, int(input()) + 1), sep='\\n')",),
        ("print(1)", "print(*range(int(input())), sep='\\n')"),
    ),
    (_LARGE, ("print(100000 * int(input()))",), ("print(100000 * int(input()) + 1)",)),
    (_HALF, ("print(int(input()) / 2)", "print('%.7f' % (int(input()) / 2))"), ("print(int(input()) // 2)",)),
    (_MANY, ("print(int(input()) ** 2)",), ("n = int(input())\nprint(n ** 2 if n != 11 else 0)",)),
    (
        _PAIRS,
        ("def f(n):\n    return [(k, k) for k in range(n)]",),
        ("def f(n):\n    return [(k, 0) for k in range(n)]",),
    ),
    (_LIST, ("def f(n):\n    return [n, 2 * n]",), ("def f(n):\n    return n", "def f(n):\n    return [n]")),
    (_THIRD, ("def f():\n    return 0.1 + 0.2",), ("def f():\n    return 0.31",)),
    (
        _CLASS,
        ("class Solution:\n    def square(self, n):\n        return n * n",),
        ("class Solution:\n    def square(self, n):\n        return n + n",),
    ),
    (_WORDS, ("def f(s):\n    return s.split()",), ("def f(s):\n    return str(s.split())", "def f(s):\n    return s")),
    (
        DOUBLE,
        ("f = lambda x: x << 1",),
        ("def f(x):\n    return True if x == 1 else 42", "def g(x):\n    return 2 * x"),
    ),
)


def labelled_pairs() -> Iterator[LabelledProgram]:
    """Every program with its label."""
    for problem, right, wrong in _TABLE:
        for label, sources in ((True, right), (False, wrong)):
            for number, source in enumerate(sources, 1):
                name = f"pair-{problem.id}-{'right' if label else 'wrong'}-{number}"
                yield LabelledProgram(name, problem, Program(source + "\n"), right=label)
