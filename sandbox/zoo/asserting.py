"""Asserts that the test helps to compute: with names of its own, of the preamble, and of modules."""

from __future__ import annotations

from typing import Final

from sandbox.core.nouns import Case
from sandbox.core.problem import Problem
from sandbox.zoo.exhibits import FAST, HONEST_DOUBLE, Attack, Entry, python

_APART: Final = (
    "the test's own side is computed in a jail of its own, or by the judge, and the program only gives values"
)
_HELPER: Final = Problem(
    "double", "assert", (Case("assert same(f(1), 2)\nassert same(f(21), 42)"),), fn_name="f", limits=FAST,
    preamble="def same(a, b):\n    return a == b\n",
)  # fmt: skip
_OWN: Final = Problem(
    "double", "assert", (Case("from math import *\nfor x in (1, 21):\n    assert isclose(f(x), 2 * x)"),), fn_name="f",
    limits=FAST,
)  # fmt: skip
_FORGED: Final = (
    "import json, os\ndef f(x):\n    nonce = os.pread(3, 1 << 20, 0)[-32:]\n"
    "    frame = nonce + json.dumps({'ok': True, 'values': [True, True]}).encode()\n"
    "    os.pwrite(4, frame, 0)\n    os._exit(0)\n"
)
_SPOKEN: Final = (
    "import os\ndef f(x):\n    for fd in range(3, 64):\n        try:\n"
    "            os.write(fd, b'[\"value\", true, null]\\n' * 9)\n        except OSError:\n            pass\n"
    "    return 5\n"
)

_SUBSET: Final = Problem(
    "subset", "assert", (Case("assert f(1).issubset({2, 3})\nassert not f(21).difference({42})"),), fn_name="f",
    limits=FAST,
)  # fmt: skip
_SIZES: Final = Problem(
    "sizes", "assert", (Case("for x in (1, 21):\n    assert len(f(x)) == x + 2"),), fn_name="f", limits=FAST
)

ENTRIES: Final = (
    Entry(
        "redefined-helper", 9, "redefine what the preamble gives the asserts", _APART, _HELPER,
        (
            Attack("same = lambda a, b: True\ndef f(x):\n    return 5\n", "WA", "does not hold", "exit_code"),
            Attack("class A:\n    def __eq__(self, other):\n        return True\n    __hash__ = None\ndef f(x):\n"
                   "    return A()\n", "WA", "no JSON form"),
            Attack(_FORGED, "RE", "ended"),
        ),
        python(HONEST_DOUBLE, "def same(a, b):\n    return a is b\n" + HONEST_DOUBLE),
    ),
    Entry(
        "patched-modules", 9, "patch the module that the asserts import from", _APART, _OWN,
        (
            Attack("import math\nisclose = math.isclose = lambda *a, **k: True\ndef f(x):\n    return 5\n",
                   "WA", "does not hold", "exit_code"),
            Attack(_FORGED, "RE", "ended"),
            Attack(_SPOKEN, "WA RE", "does not hold|unreadable|ended"),
        ),
        python(HONEST_DOUBLE, "from math import *\n" + HONEST_DOUBLE),
    ),
    Entry(
        "says-so-itself", 4, "an object whose own methods say that it is right",
        "an object that is no plain value decides nothing in a test", _SUBSET,
        (
            Attack("class Yes:\n    def __getattr__(self, name):\n        return lambda *args: name == 'issubset'\n"
                   "def f(x):\n    return Yes()\n", "WA", "no JSON form"),
        ),
        python("def f(x):\n    return {2 * x}\n"),
    ),
    Entry(
        "breaks-the-test", 9, "a value that breaks the test where it is out of reach, to forge its end where it is not",
        "an error that a value has raised is the value's, wherever it is raised", _SIZES,
        (
            Attack("import os, sys\nframe, names = sys._getframe(), []\nwhile frame:\n"
                   "    names.append(frame.f_code.co_name)\n    frame = frame.f_back\ndef f(x):\n"
                   "    if '_serve' in names:\n        return 5\n    nonce = os.pread(3, 1 << 20, 0)[-32:]\n"
                   '    os.pwrite(4, nonce + b\'{"ok": true, "values": []}\', 0)\n    os._exit(0)\n',
                   "RE", "TypeError"),
        ),
        python("def f(x):\n    return [0] * (x + 2)\n"),
    ),
)  # fmt: skip
