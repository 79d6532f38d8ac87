"""Values that pose as the answer, verdicts that a program writes itself, and frames that it forges."""

from __future__ import annotations

from typing import Final

from sandbox.core.nouns import MIB, Case
from sandbox.core.problem import Problem
from sandbox.zoo.exhibits import ASSERTS, DOUBLE, FAST, HONEST_DOUBLE, SUM, Attack, Entry, python

_OUTSIDE: Final = "only exact builtin types cross, as JSON, and are compared outside, types included"
_ALWAYS: Final = (
    "class A:\n    def __eq__(self, other):\n        return True\n    def __ne__(self, other):\n        return False\n"
    "    def __bool__(self):\n        return True\n    __hash__ = None\n"
)
_SCAN: Final = (
    "import json, os\n{frame}\nfor fd in range(3, 256):\n    for put in (os.write, lambda n, d: os.pwrite(n, d, 0)):\n"
    "        try:\n            put(fd, frame)\n        except OSError:\n            pass\n"
)

ENTRIES: Final = (
    Entry(
        "always-equal", 4, "an object that equals everything", _OUTSIDE, DOUBLE,
        (
            Attack(_ALWAYS + "def f(x):\n    return A()\n", "WA", "no JSON form", "in_process"),
            Attack("class M(type):\n    def __eq__(c, o):\n        return True\n    __hash__ = type.__hash__\n"
                   "class A(metaclass=M):\n    pass\ndef f(x):\n    return A\n", "WA", "no JSON form", "in_process"),
            Attack("from unittest.mock import ANY\ndef f(x):\n    return ANY\n", "WA", "no JSON form", "in_process"),
        ),
        python("class P:\n    def __init__(self, n):\n        self.n = n\n    def __eq__(self, o):\n"
               "        return self.n == o.n\ndef f(x):\n    return 2 * x if P(1) == P(1) else 0\n"),
    ),
    Entry(
        "always-equal-assert", 4, "an object that equals everything, against asserts", _OUTSIDE, ASSERTS,
        (Attack(_ALWAYS + "def f(x):\n    return A()\n", "WA", "no JSON form", "exit_code"),),
        python(HONEST_DOUBLE),
    ),
    Entry(
        "equal-subclass", 5, "a subclass of int, str or list with its own __eq__", _OUTSIDE, DOUBLE,
        (
            Attack("class A(int):\n    def __eq__(self, o):\n        return True\n    __hash__ = int.__hash__\n"
                   "def f(x):\n    return A(7)\n", "WA", "no JSON form", "in_process"),
            Attack("class A(str):\n    def __eq__(self, o):\n        return True\n    __hash__ = str.__hash__\n"
                   "def f(x):\n    return A('7')\n", "WA", "no JSON form", "in_process"),
            Attack("def f(x):\n    return 2.0 * x\n", fools="in_process relaxed"),
            Attack("def f(x):\n    return True if x == 1 else '42'\n"),
            Attack("def f(x):\n    return [2 * x]\n"),
        ),
        python("class N(int):\n    pass\ndef f(x):\n    return int(N(2 * x))\n"),
    ),
    Entry(
        "verdict-in-reach", 7, "write the verdict into the grader's own memory",
        "no process that runs a program holds a verdict, or a place to write one", DOUBLE,
        (
            Attack("import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
                   "        for value in list(frame.f_locals.values()):\n"
                   "            if type(value) is list and all(type(v) is bool for v in value):\n"
                   "                value.extend([True] * 9)\n        frame = frame.f_back\n    raise SystemExit\n",
                   "RE", "SystemExit|ended", "verdict_in_reach"),
            Attack("import gc\ndef f(x):\n    for value in gc.get_objects():\n"
                   "        if type(value) is dict and 'passed' in value:\n            value['passed'] = True\n"
                   "    raise SystemExit\n", "RE", "SystemExit|ended", "verdict_in_reach"),
        ),
        python("results = []\ndef f(x):\n    results.append(True)\n    return 2 * x\n"),
    ),
    Entry(
        "patched-harness", 9, "overwrite what the harness uses",
        "the harness keeps the originals from before the program; the judge is in another process", DOUBLE,
        (
            Attack('import builtins, json, os\njson.dumps = lambda *a, **k: \'{"ok": true, "values": [2]}\'\n'
                   "builtins.AssertionError = Exception\nbuiltins.isinstance = lambda *a: True\n"
                   "os.pread = lambda *a: b''\ndef f(x):\n    return 3\n", "WA RE", "ended|wrong value"),
            Attack("import builtins\nbuiltins.all = lambda values: True\nbuiltins.float = lambda *a: 1.0\ndef f(x):\n"
                   "    return 3\n", fools="in_process"),
            Attack("import sys\nfor module in list(sys.modules.values()):\n"
                   "    for name in ('same', 'encode', '_dumps'):\n        if hasattr(module, name):\n"
                   "            setattr(module, name, lambda *a, **k: 2)\ndef f(x):\n    return 3\n",
                   "WA RE", "ended|wrong value"),
            Attack("import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
                   "        frame.f_globals['_same'] = lambda *a, **k: True\n        frame = frame.f_back\n"
                   "    return 3\n", fools="in_process"),
        ),
        python("import builtins\nbuiltins.double = lambda x: 2 * x\ndef f(x):\n    return double(x)\n"),
    ),
    Entry(
        "patched-assert", 9, "turn off what an assert raises", _OUTSIDE, ASSERTS,
        (
            Attack("class check:\n    def __init__(self, *a):\n        pass\nimport builtins\n"
                   "class Quiet(BaseException):\n    def __init__(self, *a):\n        import os\n        os._exit(0)\n"
                   "builtins.AssertionError = Quiet\nAssertionError = Quiet\ndef f(x):\n    return 0\n",
                   "WA RE", "does not hold|ended"),
            Attack("import sys\ndef f(x):\n    sys.stderr.close()\n"
                   "    sys.excepthook = lambda *a: __import__('os')._exit(0)\n",
                   "WA RE", "does not hold|ended", "exit_code"),
        ),
        python(HONEST_DOUBLE),
    ),
    Entry(
        "marker-on-stdout", 14, "print the harness's own success marker",
        "data comes on a descriptor of its own, with a nonce for each run", DOUBLE,
        (
            Attack("import json, os\nprint(json.dumps({'ok': True, 'values': [2], 'passed': 2}))\n"
                   "print('ALL TESTS PASSED')\nimport sys\nsys.stdout.flush()\nos._exit(0)\n",
                   "RE", "before its result", "marker exit_code"),
            Attack("print('1.0')\nprint('ALL TESTS PASSED')\n", "RE", "KeyError", "marker"),
        ),
        python(HONEST_DOUBLE + "print('ALL TESTS PASSED')\nprint('{\"ok\": true}')\n"),
    ),
    Entry(
        "forged-frame", 15, "scan the descriptors and write frames into them",
        "a frame counts only with this run's nonce, which the harness reads after the last step", DOUBLE,
        (
            Attack(_SCAN.format(frame="frame = bytes(32) + json.dumps({'ok': True, 'values': [2]}).encode()")
                   + "os._exit(0)\n", "RE", "before its result", "exit_code"),
            Attack(_SCAN.format(frame="frame = json.dumps({'ok': True, 'values': [2]}).encode() * 1000")
                   + "def f(x):\n    return 3\n", "WA RE OLE", "ended|wrong value|limit"),
        ),
        python("import os\nr, w = os.pipe()\nos.write(w, b'2')\ndef f(x):\n    return 2 * x\n"),
    ),
    Entry(
        "huge-integers", 42, "integers of thousands of digits",
        "integers cross as text of any length, and the comparison does not depend on the interpreter's limit",
        Problem("power", "function", (Case("[6000]", "1" + "0" * 6000),), fn_name="f", limits=FAST),
        (
            Attack("def f(n):\n    return 10 ** n + 1\n"),
            Attack("def f(n):\n    return 10 ** (10 ** 7)\n", "WA OLE MLE TLE", "limit|wrong value", harmful=True),
            Attack("def f(n):\n    return 1e308 * 10\n"),
        ),
        python("def f(n):\n    return 10 ** n\n"),
    ),
    Entry(
        "pickled-gadget", 43, "an object that runs code where it is unpickled",
        "nothing is ever unpickled: values are JSON", DOUBLE,
        (
            Attack("class G:\n    def __reduce__(self):\n"
                   "        return (eval, (\"__import__('sys').modules['__main__'].expected\",))\ndef f(x):\n"
                   "    return G()\n", "WA", "no JSON form", "unpickles"),
        ),
        python("import pickle\ndef f(x):\n    return pickle.loads(pickle.dumps(2 * x))\n"),
    ),
    Entry(
        "json-bombs", 44, "results too deep, too large or too odd to read",
        "a cap on bytes and on depth, counted before anything is built", DOUBLE,
        (
            Attack("def f(x):\n    a = []\n    for _ in range(100000):\n        a = [a]\n    return a\n",
                   "WA", "nested"),
            Attack("def f(x):\n    a = []\n    a.append(a)\n    return a\n", "WA", "nested"),
            Attack("def f(x):\n    return 'x' * (8 << 20)\n", "OLE", "output limit"),
            Attack("def f(x):\n    return [[]] * (1 << 20)\n", "OLE TLE MLE", "limit"),
            Attack("def f(x):\n    return float('nan')\n"),
            Attack("def f(x):\n    return {1: 2, '1': 42}\n"),
            Attack("def f(x):\n    return '\\ud800' * 5\n", "WA RE", "wrong value|unreadable"),
        ),
        python("def f(x):\n    [[[]]] * 100000\n    return 2 * x\n"),
    ),
    Entry(
        "large-honest-value", 44, "a result of a megabyte is legal", "the cap is the problem's own output limit",
        Problem("row", "function", (Case("[100000]", str([1] * 100000)),), fn_name="f", limits=FAST),
        (Attack("def f(n):\n    return [1] * (n - 1)\n", fools="first_line"),),
        python("def f(n):\n    return [1] * n\n"),
    ),
    Entry(
        "relaxed-comparison", 14, "output that only a generous comparison takes",
        "tokens, all of them, in order; a number only where the expected token is written as one",
        Problem(
            "lines", "stdio", (Case("3\n", "YES\n100000\n3"), Case("4\n", "YES\n100000\n4")), limits=FAST
        ),
        (
            Attack("n = input()\nprint('NO\\n100000\\n' + n)\n", fools="relaxed"),
            Attack("n = input()\nprint('YES\\n100001\\n' + n)\n", fools="relaxed"),
            Attack("print('YES')\n", fools="first_line"),
            Attack("n = input()\nprint(n + '\\n100000\\nYES')\n", fools="relaxed"),
            Attack("n = input()\nprint('YES\\n100000\\n' + n)\nraise SystemExit(1)\n", "RE", "exit code 1", "relaxed"),
        ),
        python("n = input()\nprint('YES  \\n100000\\r\\n' + n)\n"),
    ),
    Entry(
        "prefix-of-the-output", 14, "print the first of the expected lines, and no more",
        "the whole output is compared, its length too",
        Problem(
            "count", "stdio", (Case("3\n", "1\n2\n3"), Case("5\n", "1\n2\n3\n4\n5")), limits=FAST
        ),
        (
            Attack("print(1)\n", fools="first_line"),
            Attack("n = int(input())\nprint(*range(1, n), sep='\\n')\n", fools="first_line"),
            Attack("print(1, flush=True)\nimport os\nos._exit(0)\n", fools="first_line"),
        ),
        python("print(*range(1, int(input()) + 1), sep='\\n')\n"),
    ),
    Entry(
        "nothing-expected", 10, "raise, or end, where the function should return nothing",
        "a case passes by the value that its call returned, and no value is none of them",
        Problem("check", "function", (Case("[1]", "null"), Case("[3]", "3")), fn_name="f", limits=FAST),
        (
            Attack("def f(x):\n    if x == 3: return x\n    raise ValueError\n", "RE", "ValueError", "nothing_wanted"),
            Attack("def f(x):\n    if x == 3: return 3\n    raise SystemExit(0)\n", "RE", ".", "nothing_wanted"),
            Attack("import os\ndef f(x):\n    if x == 3: return 3\n    os._exit(0)\n", "RE", ".", "nothing_wanted"),
            Attack("def f(x):\n    return 3 if x == 3 else ''\n", fools="nothing_wanted"),
        ),
        python("def f(x):\n    if x == 3: return 3\n"),
    ),
    Entry(
        "no-tests", 10, "a problem without tests", "it is refused when it is made, "
                                                   "so nothing can pass all of none", SUM,
        own_test="test_a_problem_without_tests_cannot_be_made",
        honest=python("print(sum(map(int, input().split())))\n"),
    ),
    Entry(
        "flood-of-frames", 44, "a frame of a hundred megabytes", "the descriptor is capped, the judge reads no further",
        DOUBLE,
        (
            Attack(f"import os\nblock = b'x' * {MIB}\nfor _ in range(100):\n    os.write(4, block)\ndef f(x):\n"
                   f"    return 2\n", "OLE RE", "output limit|ended"),
        ),
        python(HONEST_DOUBLE),
    ),
)  # fmt: skip
