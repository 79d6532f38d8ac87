"""Asserts that the test helps to compute: with names of its own, of the preamble, and of modules."""

from __future__ import annotations

from typing import Final

from sandbox.core import Case, Problem
from sandbox.zoo import FAST, HONEST_DOUBLE, Attack, Entry, python

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

ENTRIES: Final = (
    Entry(
        "redefined-helper", 9, "redefine what the preamble gives the asserts", _APART, _HELPER,
        (
            Attack("same = lambda a, b: True\ndef f(x):\n    return 5\n", "WA", "does not hold", "exit_code"),
            Attack(
                "class A:\n    def __eq__(self, other):\n        return True\n    __hash__ = None\n"
                "def f(x):\n    return A()\n",
                "WA", "no JSON form", "",
            ),
            Attack(_FORGED, "RE", "ended", ""),
        ),
        python(HONEST_DOUBLE, "def same(a, b):\n    return a is b\n" + HONEST_DOUBLE),
    ),
    Entry(
        "patched-modules", 9, "patch the module that the asserts import from", _APART, _OWN,
        (
            Attack(
                "import math\nisclose = math.isclose = lambda *a, **k: True\ndef f(x):\n    return 5\n",
                "WA", "does not hold", "exit_code",
            ),
            Attack(_FORGED, "RE", "ended", ""),
            Attack(_SPOKEN, "WA RE", "does not hold|unreadable|ended", ""),
        ),
        python(HONEST_DOUBLE, "from math import *\n" + HONEST_DOUBLE),
    ),
)  # fmt: skip
