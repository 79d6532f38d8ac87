"""Problems of each kind, judged, and programs that try to pass asserts in other ways."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO

from sandbox import Case, Judgement, Limits, Problem, Program
from sandbox.judging import python_asserts
from sandbox.judging.judge import Judge

LIMITS = Limits(cpu_s=2, wall_s=30)


def asserts(judge: Judge, source: str, *tests: str, **fields: object) -> Judgement:
    options = {"limits": LIMITS, **fields}
    return judge.judge(Problem("p", "assert", tuple(map(Case, tests)), **options), Program(source))  # type: ignore[arg-type]


def stdio(judge: Judge, source: str, *cases: tuple[str, str], language: str = "python", **fields: object) -> Judgement:
    limits = fields.pop("limits", LIMITS)
    problem = Problem("p", "stdio", tuple(Case(*case) for case in cases), limits=limits, **fields)  # type: ignore[arg-type]
    return judge.judge(problem, Program(source, language))


def function(judge: Judge, source: str, args: str, expected: str, **fields: object) -> Judgement:
    options = {"fn_name": "f", "limits": LIMITS, **fields}
    return judge.judge(Problem("p", "function", (Case(args, expected),), **options), Program(source))  # type: ignore[arg-type]


def holds(above: str, source: str, test: str) -> bool:
    """Plain Python's verdict, with everything in this process."""
    with redirect_stdout(StringIO()):
        try:
            exec(f"{above}\n{source}\n{test}", {"__name__": __name__})
        except BaseException:  # a program may raise anything
            return False
    return True


def is_decisive(test: str, preamble: str = "") -> bool:
    found = python_asserts.plan_asserts(test, preamble)
    return not found.weak or (found.apart is not None and found.apart.decisive)


SQUARE = "def sq(x): return x * x"
FORGED = """
import json, os, sys
def sq(x):
    nonce = os.pread(3, 1 << 20, 0)[-32:]
    for values in ([True], [True, True]):
        os.pwrite(4, nonce + json.dumps({"ok": True, "values": values}).encode(), 0)
    os._exit(0)
"""
PATCHES = """
import builtins, collections, math, operator
math.isclose = lambda *a, **k: True
collections.Counter.most_common = lambda *a: [(1, 2)]
isclose = same = ok = ref = abs = lambda *a, **k: True
class Ref:
    def of(self, x): return sq(x)
builtins.all = lambda *a: True
def sq(x): return 7
"""
TWO_FACED = """
import os, sys
frame, names = sys._getframe(), []
while frame:
    names.append(frame.f_code.co_name)
    frame = frame.f_back
def f(x):
    if '_serve' in names:
        {apart}
    nonce = os.pread(3, 1 << 20, 0)[-32:]
    os.pwrite(4, nonce + b'{{"ok": true, "values": []}}', 0)
    os._exit(0)
"""
