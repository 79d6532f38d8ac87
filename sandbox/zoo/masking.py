"""Ways to have one's failure taken for the judge's: what makes a judge, or its author's checker, fall over."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sandbox.core.nouns import Case, Program
from sandbox.core.problem import Problem
from sandbox.zoo.exhibits import DOUBLE, FAST, HONEST_DOUBLE, HONEST_SUM, SUM, Attack, Entry, cpp, python

_CLOSE: Final = replace(SUM, compare="code_contests")
_NAIVE: Final = Program(
    "import sys\nfound, right = (int(open(name).read()) for name in sys.argv[2:])\nsys.exit(found != right)\n"
)
# It says accepted of what it cannot read.
_CARELESS: Final = Program(
    "#include <fstream>\nint main(int, char **argv) {\n"
    "    std::ifstream out(argv[2]), right(argv[3]);\n"
    "    for (long x, y; right >> x;) if (out.is_open() && (!(out >> y) || x != y)) return 1;\n"
    "    return 0;\n}\n",
    "cpp",
)
_SQUARE: Final = Problem(
    "square", "stdio", (Case("3\n", "9\n"), Case("5\n", "25\n")), limits=FAST, compare="checker", checker=_NAIVE
)
# It gives the program another run whenever that says so, and nowhere counts.
_PATIENT: Final = Program(
    "import sys\nfeedback, said = sys.argv[3], sys.stdin.read().split()\nn = int(open(sys.argv[1]).read())\n"
    "if 'again' in said:\n    open(feedback + 'nextpass.in', 'w').write(str(n + 1))\n    sys.exit(42)\n"
    "sys.exit(42 if said == [str(n * n)] else 43)\n"
)
_ASKED_AGAIN: Final = replace(_SQUARE, checker=_PATIENT, convention="kattis", passes=3)
_SQUARE_CARELESS: Final = replace(_SQUARE, checker=_CARELESS)


def _forge(*bodies: str) -> tuple[Attack, ...]:
    """Frames under the run's own nonce; each body is a Python expression for its text."""
    return tuple(
        Attack(
            "import os\ndef f(x):\n    size = os.fstat(3).st_size\n"
            f"    os.pwrite(4, os.pread(3, 32, size - 32) + ({body}).encode(), 0)\n    os._exit(0)\n",
            "WA RE CE",
            ".",
        )
        for body in bodies
    )


ENTRIES: Final = (
    Entry(
        "frames-nobody-can-read", 52, "forge a result that makes the judge raise an exception",
        "a frame is plain data of bounded size: what is not ours in shape is no result", DOUBLE,
        _forge(
            "'{\"ok\": true, \"values\": [{\"c\": [1' + '0' * 400 + ', 0]}]}'",
            "'{\"ok\": true, \"values\": [{\"d\": [[' + '9' * 5000 + ', 1]]}]}'",
            "'{\"ok\": false, \"error\": ' + '9' * 5000 + '}'",
            "'{\"ok\": false, \"stage\": \"compile\", \"error\": ' + '9' * 5000 + '}'",
            "'{\"ok\": false, \"error\": \"\\\\ud800\\\\n\\\\u001b\"}'",
            "'[' * 100000",
            "'{\"ok\": true, \"values\": [' + '[' * 900 + ']' * 900 + ']}'",
            "'{\"ok\": true'",
            "'{\"ok\": true, \"values\": [' + '{\"d\": [[1, ' * 199 + '1' + ']]}' * 199 + ']}'",
        ),
        python(HONEST_DOUBLE + "big = 10 ** 5000\n"),
    ),
    Entry(
        "frames-on-standard-input", 52, "forge a result where none is asked for",
        "of a frame beside an output only the error's text is used", SUM,
        (
            Attack("import os\nsize = os.fstat(3).st_size\ntext = b'{\"ok\": false, \"error\": ' + b'9' * 5000 + b'}'\n"
                   "os.pwrite(4, os.pread(3, 32, size - 32) + text, 0)\nos._exit(1)\n", "RE", "exit code 1"),
        ),
        python(HONEST_SUM),
    ),
    Entry(
        "values-with-one-hash", 52, "return what takes the judge's dicts hours",
        "equal hashes are counted before a table is made of them", DOUBLE,
        _forge(
            *(
                f"'{{\"ok\": true, \"values\": [{opening}' + ','.join({item!r} % (k * (2 ** 61 - 1)) "
                "for k in range(20000)) + ']}]}'"
                for opening, item in (
                    ('{"s": [', '{"i": "%#x"}'),
                    ('{"z": [', '{"t": [{"i": "%#x"}]}'),
                    ('{"d": [', '[{"i": "%#x"}, 1]'),
                )
            )
        ),
        python(HONEST_DOUBLE + "seen = {k * (2 ** 61 - 1) for k in range(1000)}\n"),
    ),
    Entry(
        "numbers-that-are-none", 52, "print what a pattern for numbers reads a billion times",
        "no pattern can match one text in two ways", _CLOSE,
        tuple(
            Attack(f"print({value})\n")
            for value in ("'1' * 900000 + 'x'", "'1.' + '1' * 900000 + 'x'", "'1e' + '1' * 900000 + 'x'")
        ),
        python("print('0' * 900000 + str(sum(map(int, input().split()))))\n"),
    ),
    Entry(
        "no-program", 52, "compile to what the kernel will not start", "it is the program that cannot be run", SUM,
        (
            Attack('asm(".globl main\\nmain = 0");\n', "RE", "SIGSEGV", language="cpp"),
            Attack('__attribute__((section(".interp"), used)) const char x[] = "/' + "x" * 5000 + '";\nint main() {}\n',
                   "RE", "cannot be run", language="cpp"),
            Attack("char x[1l << 40];\nint main() {}\n", "CE RE MLE", ".", language="cpp"),
        ),
        cpp("#include <iostream>\nint main() { long a, b; std::cin >> a >> b; std::cout << a + b << '\\n'; }\n"),
    ),
    Entry(
        "felling-the-checker", 52, "write what the author's checker falls over",
        "it is asked about the expected answer too: where it does not fall over that, the output is wrong", _SQUARE,
        (
            Attack("pass\n", "WA", "the checker raised"),
            Attack("import os\nos.write(1, b'9\\xff')\n", "WA", "the checker raised"),
            Attack("print('nine')\n", "WA", "the checker raised"),
            Attack("print('9' * 1000000)\n", "WA", "the checker raised"),
            Attack("print('9\\x00')\n", "WA", "the checker raised"),
        ),
        python("print(int(input()) ** 2)\n"),
    ),
    Entry(
        "never-enough-runs", 52, "have the author's checker ask for more runs than the problem has",
        "it is asked about the expected answer too: where it does not ask then, the output is wrong", _ASKED_AGAIN,
        (
            Attack("print('again')\n", "WA", "asked for more than the problem's 3 runs"),
            Attack("print('again' if input() == '3' else 'again ' * 5)\n", "WA", "asked for more"),
        ),
        python("n = input()\nprint('again' if n == '3' else int(n) ** 2)\n"),
    ),
    Entry(
        "robbing-the-checker", 52, "take the checker's files, so that it cannot read what is wrong",
        "it runs where no judged program has run, and its files are seen to be readable there", _SQUARE_CARELESS,
        (
            Attack("import os\ntry:\n    os.chmod('.', 0)\nexcept OSError:\n    pass\nprint(8)\n",
                   "WA", "says the checker"),
            Attack("import os\nfor name in ('input.txt', 'output.txt', 'answer.txt'):\n"
                   "    os.makedirs(name + '/x', 0)\nprint(8)\n", "WA RE", "says the checker|PermissionError"),
            Attack("try:\n    with open('x', 'wb') as file:\n        while True:\n"
                   "            file.write(bytes(1 << 20))\nexcept OSError:\n    pass\nprint(8)\n",
                   "WA TLE", "says the checker|limit", harmful=True),
        ),
        python("import os\nos.makedirs('output.txt')\nprint(int(input()) ** 2)\n"),
    ),
)  # fmt: skip
