"""Ways to end before the tests do, to fake how one ended, and to hand in what is no program."""

from __future__ import annotations

from typing import Final

from sandbox.core.nouns import MIB, Case, Limits
from sandbox.core.problem import Problem
from sandbox.zoo.exhibits import (
    ASSERTS,
    DOUBLE,
    FAST,
    HONEST_DOUBLE,
    HONEST_SUM,
    OPENED,
    SUM,
    Attack,
    Entry,
    cpp,
    python,
)

_TOKEN: Final = "a verdict is never an exit code: the values, or a token from after the last assert, must arrive"

ENTRIES: Final = (
    Entry(
        "exit-before-asserts", 1, "sys.exit(0) before the asserts run", _TOKEN, ASSERTS,
        (
            Attack("import sys\nsys.exit(0)\n", "RE", "ended|SystemExit", "exit_code"),
            Attack("raise SystemExit(0)\n", "RE", "ended|SystemExit", "exit_code"),
            Attack("def f(x):\n    raise SystemExit(0)\n", "RE", "ended|SystemExit", "exit_code"),
            Attack("def f(x):\n    quit()\n", "RE", "ended|SystemExit", "exit_code"),
        ),
        python(HONEST_DOUBLE, HONEST_DOUBLE + "import sys\nif f(1) != 2:\n    sys.exit(0)\n"),
    ),
    Entry(
        "hard-exit-at-import", 2, "os._exit(0) at import", _TOKEN, ASSERTS,
        (
            Attack("import os\nos._exit(0)\n", "RE", "before its result", "exit_code"),
            Attack("def f(x):\n    import os\n    os._exit(0)\n", "RE", "before its result", "exit_code"),
            Attack("import ctypes\ndef f(x):\n    ctypes.CDLL(None)._exit(0)\n",
                   "RE", "before its result", "exit_code"),
        ),
        python(
            HONEST_DOUBLE + "import os\npid = os.fork()\nif pid == 0:\n    os._exit(0)\nos.waitpid(pid, 0)\n",
        ),
    ),
    Entry(
        "exit-handler", 3, "an exit handler that turns failure into exit code 0", _TOKEN, ASSERTS,
        (
            Attack("import atexit, os\natexit.register(os._exit, 0)\ndef f(x):\n    return 0\n",
                   "WA RE", "does not hold|before its result", "exit_code"),
            Attack("import sys, os\nsys.excepthook = lambda *a: os._exit(0)\ndef f(x):\n    return 0\n",
                   "WA RE", "does not hold|before its result", "exit_code"),
        ),
        python("import atexit\natexit.register(lambda: None)\n" + HONEST_DOUBLE),
    ),
    Entry(
        "skip", 10, "raise a test framework's skip", "nothing skips: a case that gave no value has failed", ASSERTS,
        (
            Attack("import unittest\ndef f(x):\n    raise unittest.SkipTest('not today')\n",
                   "RE", "SkipTest", "framework"),
            Attack("class Skipped(BaseException):\n    pass\ndef f(x):\n    raise Skipped('skip')\n", "RE", "Skipped"),
        ),
        python("import unittest\n" + HONEST_DOUBLE),
    ),
    Entry(
        "own-tests", 13, "the answer brings tests of its own", "no branch looks at the text of an answer", ASSERTS,
        (
            Attack("import unittest\ndef f(x):\n    return 0\ndef test_f():  # pytest\n    assert f(1) == 0\n"
                   "class T(unittest.TestCase):\n    def test(self):\n        test_f()\n",
                   "WA", "does not hold", "framework"),
        ),
        python("# checked with pytest and unittest\n" + HONEST_DOUBLE + "def test_f():\n    assert f(2) == 4\n"),
    ),
    Entry(
        "posing-as-killed", 53, "exit codes and signals that pose as a limit's",
        "a cause is what the enforcer recorded, never what a status looks like", SUM,
        (
            Attack("raise SystemExit(137)\n", "RE", "exit code 137"),
            Attack("raise SystemExit(124)\n", "RE", "exit code 124", "infra_is_free"),
            Attack("import os, signal\nsignal.signal(signal.SIGXCPU, signal.SIG_DFL)\n"
                   "os.kill(os.getpid(), signal.SIGXCPU)\n", "RE", "SIGXCPU", "infra_is_free"),
            Attack("import os\nos.kill(os.getpid(), 31)\n", "RE", "SIGSYS", "infra_is_free"),
            Attack("import os\nos.kill(os.getpid(), 9)\n", "RE", "SIGKILL", "infra_is_free"),
            Attack("#include <csignal>\nint main() { raise(SIGXCPU); }\n", "RE", "SIGXCPU", language="cpp"),
        ),
        (
            *python("import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n" + HONEST_SUM),
            *cpp("#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b; }\n"),
        ),
    ),
    Entry(
        "not-a-program", 54, "an empty, blank, endless or unreadable program",
        "it does not compile; a source has a size cap", SUM,
        (
            Attack("", "CE", "empty", "no_complaint"),
            Attack("# nothing\n", "CE", "empty", "no_complaint"),
            Attack('"""only words"""\n', "CE", "empty", "no_complaint"),
            Attack("\ufeff", "CE", "empty", "no_complaint"),
            Attack("print(7)\x00\n", "CE", "null bytes"),
            Attack("x = '\udc80'\n\udc80 = 1\n", "CE", "Unicode|SyntaxError"),
            Attack("(" * 5000, "CE", "too many nested|SyntaxError|MemoryError"),
            Attack("# " + "x" * (5 * MIB) + "\nprint(7)\n", "CE", "longer than"),
            Attack("", "CE", "undefined reference", language="cpp"),
        ),
        python("\ufeff" + HONEST_SUM, "# é ü 日本\n" + HONEST_SUM, "# " + "x" * 100_000 + "\n" + HONEST_SUM),
    ),
    Entry(
        "fences", 55, "code fences, several blocks, an answer inside the thoughts",
        "one documented rule takes a program out of an answer; the judge itself reads no fences", SUM,
        (
            Attack("```python\n" + HONEST_SUM + "```\n", "CE", "SyntaxError", "fenced"),
            Attack("<think>\n" + HONEST_SUM + "</think>\n", "CE", "SyntaxError"),
        ),
        python("s = '''\n```python\n'''\n" + HONEST_SUM),
        own_test="test_the_rule_of_extraction_takes_one_block_and_never_the_thoughts",
    ),
    Entry(
        "partial-output", 26, "count calls: the Nth process returns the Nth answer",
        "a fresh process and a fresh file system for each case", DOUBLE,
        (
            Attack("n = 0\ndef f(x):\n    global n\n    n += 1\n    return [2, 42][n - 1]\n", fools="in_process"),
            Attack("import os, tempfile\ndef f(x):\n    path = tempfile.gettempdir() + '/calls-of-f'\n"
                   "    n = os.path.getsize(path) if os.path.exists(path) else 0\n    open(path, 'a').write('x')\n"
                   "    return [42, 2][n % 2]\n", fools="relaxed"),
        ),
        python("from functools import cache\n@cache\ndef f(x):\n    return 2 * x\n"),
    ),
    Entry(
        "blocks-on-stdin", 41, "stdin is never read, or closed, or read past its end",
        "stdin is sealed memory: no process writes to a pipe that a program reads",
        Problem("ok", "stdio", (Case("x" * (1 * MIB) + "\n", "opened"),), limits=Limits(cpu_s=0.5, wall_s=1.0)),
        (
            Attack("import os\nwhile True:\n    os.read(0, 1 << 20)\n", "TLE", "CPU-time|wall-time"),
            Attack("import time\ntime.sleep(60)\n", "TLE", "wall-time"),
            Attack("import os\nos.close(0)\nopen('/dev/zero').close()\nprint(input())\n", "RE", "exit code 1"),
        ),
        python("print('opened')\n", "import sys\nsys.stdin.close()\nprint('opened')\n"),
    ),
    Entry(
        "crashing-the-judge", 52, "crash the judge, so that the sample is dropped or tried again",
        "retries only for faults that we see ourselves; what a program did is its verdict", OPENED,
        (
            Attack("import os\nos.kill(os.getppid(), 9)\nos.kill(os.getppid(), 11)\nraise SystemExit(1)\n",
                   "RE", "not permitted|exit code 1"),
            Attack("import os\nos.abort()\n", "RE", "SIGABRT", "infra_is_free"),
            Attack("import ctypes\nctypes.string_at(0)\n", "RE", "SIGSEGV", "infra_is_free"),
        ),
        python("import os, signal\nos.kill(os.getpid(), signal.SIGCHLD)\nprint('opened')\n"),
        own_test="test_a_program_that_crashes_is_judged_once_and_never_counts_as_our_failure",
    ),
    Entry(
        "no-answer", 25, "answers learnt by heart for the tests that are public",
        "cannot be seen in a program; only hidden tests tell",
        Problem("double", "function", (Case("[1]", "2"), Case("[37]", "74")), fn_name="f", limits=FAST),
        (
            Attack("def f(x):\n    return {1: 2, 21: 42}.get(x)\n", fools="first_test"),
            Attack("def f(x):\n    return 2\n", fools="first_test"),
        ),
        python("TABLE = {n: n + n for n in range(1000)}\ndef f(x):\n    return TABLE[x]\n"),
    ),
)  # fmt: skip
