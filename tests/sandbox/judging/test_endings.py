"""How a Python program may end, and what of its output counts: what plain python3 says, is what we say."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from asserting import LIMITS, stdio

from sandbox import Case, InvalidProblem, Problem, Program, Verdict
from sandbox.core.problem import Kind
from sandbox.judging.judge import Judge

QUIET = "class Out:\n  def write(self, text): import os; os.write(1, text.encode())\n"

ENDINGS = [
    "print(1)",
    "print(1, end='')\nraise SystemExit",
    "print(1)\nimport sys\nsys.exit(0)",
    "print(1)\nimport sys\nsys.exit(None)",
    "print(1)\nimport sys\nsys.exit(False)",
    "print(1)\nimport sys\nsys.exit(True)",
    "print(1)\nimport sys\nsys.exit(256)",
    "print(1)\nimport sys\nsys.exit(10 ** 30)",
    "print(1)\nimport sys\nsys.exit(2 ** 32)",
    "print(1)\nimport sys\nsys.exit('text')",
    "print(1)\nimport sys\nsys.exit('')",
    "print(1)\nexit()",
    "print(1)\nquit(0)",
    "print(1, flush=True)\nimport os\nos._exit(0)",
    "print(1)\nimport os\nos._exit(0)",
    "print(1)\nimport os, sys\nsys.stdout.flush()\nos._exit(0)",
    "print(1)\n1 / 0",
    "import sys\nsys.excepthook = lambda *a: sys.exit(0)\nprint(1)\n1 / 0",
    "import sys, os\ndef hook(*a):\n  sys.stdout.flush()\n  os._exit(0)\nsys.excepthook = hook\nprint(1)\n1 / 0",
    "import sys\nsys.excepthook = lambda *a: print(2)\nprint(1)\n1 / 0",
    "import sys\nsys.excepthook = lambda *a: 1 / 0\nprint(1)\n1 / 0",
    "import sys\nsys.excepthook = None\nprint(1)\n1 / 0",
    "import atexit\natexit.register(print, 2)\nprint(1)",
    "import atexit\natexit.register(lambda: 1 / 0)\nprint(1)",
    "import atexit, sys\natexit.register(sys.exit, 3)\nprint(1)",
    "import atexit, os, sys\natexit.register(lambda: (sys.stdout.flush(), os._exit(0)))\nprint(1)\n1 / 0",
    "import threading\nthreading.Thread(target=lambda: print(2)).start()\nprint(1)",
    "import threading\nthreading.Thread(target=lambda: 1 / 0).start()\nprint(1)",
    "import time\nfrom concurrent.futures import *\nThreadPoolExecutor(1).submit(lambda: [time.sleep(0.2), print(1)])",
    "import threading\nthreading.Timer(0.2, print, (2,)).start()\nprint(1)",
    "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\nprint(1)",
    "out = open(1, 'w')\nout.write('1')",
    "out = open(1, 'wb', closefd=False)\nout.write(b'1')",
    "import os\nout = os.fdopen(1, 'w')\nprint(1, file=out)",
    "import os\nout = os.fdopen(os.dup(1), 'w')\nclass K:\n  keeps = out\nprint(1, file=out)",
    "import io\nout = io.BufferedWriter(io.FileIO(1, 'w'))\nout.write(b'1')",
    "import io\ndef f(): pass\nf.out = io.BufferedWriter(io.FileIO(1, 'w'))\nf.out.write(b'1')",
    "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, write_through=False)\nprint(1)",
    "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.detach())\nprint(1)",
    "import sys\nout = sys.stdout.detach()\nout.write(b'1')",
    "import sys\nprint(1)\nsys.stdout.close()",
    "import sys\nprint(1)\nsys.stdout = None",
    "import sys\nprint(1)\ndel sys.stdout",
    "import io, sys\nsys.stdout = io.StringIO()\nprint(1)\nsys.__stdout__.write(sys.stdout.getvalue())",
    "import sys\nprint(1, file=sys.__stdout__)\nsys.stdout = sys.stderr",
    "import sys\nsys.__stdout__.write('1')",
    "import sys\nsys.stdout.buffer.write(b'1')",
    "import sys\nprint(1)\nsys.stdout.buffer.write(b'2')",
    f"import sys\n{QUIET}sys.stdout = Out()\nprint(1)",
    f"import sys\n{QUIET}  def flush(self): pass\nsys.stdout = Out()\nprint(1)",
    f"import sys\n{QUIET}  def flush(self): 1 / 0\nsys.stdout = Out()\nprint(1)",
    f"import sys\n{QUIET}  closed = True\nsys.stdout = Out()\nprint(1)",
    f"import sys\n{QUIET}  closed = property(lambda s: 1 / 0)\n  def flush(self): pass\nsys.stdout = Out()\nprint(1)",
    "import sys\nclass Err:\n  def write(self, text): pass\nsys.stderr = Err()\nprint(1)",
    "import io, os, sys\nclass Fast(io.IOBase):  # as contest libraries have it\n"
    "  def __init__(s, f): s.fd, s.kept = f.fileno(), io.BytesIO()\n  def write(s, text): s.kept.write(text.encode())\n"
    "  def flush(s): os.write(s.fd, s.kept.getvalue()); s.kept.truncate(0)\nsys.stdout = Fast(sys.stdout)\nprint(1)",
    "import sys\nsys.stderr = None\nprint(1)",
    "import sys\nsys.stderr.close()\nprint(1)",
    "import os\nprint(1)\nos.close(1)",
    "import os\nos.close(0)\nprint(1)",
    "import os\nos.close(2)\nprint(1)",
    "class A:\n  def __del__(self): print(2)\na = A()\nprint(1)",
    "class A:\n  def __del__(self): print(len(b))\nb = [1]\na = A()\nprint(1)",
    "class A:\n  def __del__(self): 1 / 0\na = A()\nprint(1)",
    "class A:\n  def __del__(self): print(2)\na = A()\na.a = a\nprint(1)",
    "class A:\n  def __del__(self): print(2)\ndef f(): return a\na = A()\nprint(1)\nraise SystemExit(0)",
    "import weakref\nclass A: pass\na = A()\nweakref.finalize(a, print, 2)\nprint(1)",
    "print(open(__file__).read())",
    "import sys\nprint(len(open(sys.argv[0]).read()))",
    "import inspect\ndef f(): return 1\nprint(inspect.getsource(f))",
    "import sys\nprint(sys.stdin.mode, sys.stdout.mode, sys.stdin.name, sys.stdout.name, sys.stderr.name)",
    "print(1, flush=True)\nopen('/dev/stdout', 'w').write('2')",
    "open('/dev/stdout', 'w').write('2')\nprint(1)",
    "import sys\nsys.stdout = open('/dev/stdout', 'a')\nprint(1)",
    "import io\nprint(1, flush=True)\nwith io.open('/proc/self/fd/1', 'wb') as f: f.write(b'2')",
    "import sys\nsys.setrecursionlimit(10 ** 6)\ndef f(n): return n and 1 + f(n - 1)\nprint(f(50000))",
    "import os\nif os.fork() == 0: os._exit(3)\nos.wait()\nprint(1)",
    "exec(\"import atexit\\natexit.register(print, 2)\\nprint(1)\")",
    "import sys\ntry: sys.exit(3)\nfinally: print(1)",
    "try: raise SystemExit(0)\nexcept SystemExit: print(1)",
    "raise KeyboardInterrupt",
    "d = 0\ndef f():\n  global d\n  d += 1\n  f()\ntry: f()\nexcept RecursionError: print(d)",
    "import sys\nsys.setrecursionlimit(40)\ndef f(n): return n and 1 + f(n - 1)\nprint(f(37), sys.getrecursionlimit())",
    "import sys\nsys.setrecursionlimit(2 ** 31 - 1)\nprint(sys.getrecursionlimit())",
    "import sys\nsys.setrecursionlimit(2 ** 31)\nprint(1)",
    "import sys\nsys.setrecursionlimit(0)\nprint(1)",
    "def f(x: int) -> str: pass\nprint(f.__annotations__)",
    "def f(x: List[int]): pass\nprint(1)",
    "x: int = 1\nprint(__annotations__, __cached__)",
    "help(len)\nprint(copyright, type(credits), type(license))",
    "print('\\ud800')",
]  # fmt: skip


def plainly(source: str, directory: Path) -> tuple[bool, bytes]:
    """Does python3 call it an end, and what was written?"""
    (directory / "main.py").write_text(source)
    argv = [sys.executable, "-X", "utf8", "main.py"]
    done = subprocess.run(argv, cwd=directory, input=b"", capture_output=True, timeout=30, check=False, env={})
    return done.returncode == 0, done.stdout


@pytest.mark.parametrize("source", ENDINGS)
def test_a_program_ends_as_it_does_in_plain_python(judge: Judge, tmp_path: Path, source: str) -> None:
    well, output = plainly(source, tmp_path)
    done = stdio(judge, source, ("", output.decode() or "-"), compare="exact")
    assert done.verdict is (Verdict.RE if not well else Verdict.AC if output else Verdict.WA), (output, done.cases)


def test_every_case_has_the_same_room_to_recurse(judge: Judge) -> None:
    source = "d = 0\ndef f():\n  global d\n  d += 1\n  f()\ntry: f()\nexcept RecursionError: print(d)"
    assert stdio(judge, source, *((str(number), "999") for number in range(5))).passed == 5


@pytest.mark.parametrize("kind", ["function", "assert"])
def test_the_judges_own_future_is_not_the_programs(judge: Judge, kind: Kind) -> None:
    case = (
        Case("[]", '"int"')
        if kind == "function"
        else Case('def g(x: int): pass\nassert g.__annotations__ == {"x": int}\nassert f() == "int"')
    )
    problem = Problem("p", kind, (case,), fn_name="f", preamble="def h(x: int): pass\nh.__annotations__['x'](1)")
    done = judge.judge(problem, Program("def f(x: int = 1): return f.__annotations__['x'].__name__"))
    assert done.verdict is Verdict.AC, done.cases


@pytest.mark.parametrize(
    "limit", ["(-1, -1)", "(2 ** 29, -1)", "(2 ** 40, 2 ** 40)", "(2 ** 20, resource.RLIM_INFINITY)"]
)
def test_a_larger_stack_may_be_asked_for(judge: Judge, limit: str) -> None:
    source = f"import resource\nresource.setrlimit(resource.RLIMIT_STACK, {limit})\nprint(1)"
    assert stdio(judge, source, ("", "1")).verdict is Verdict.AC
    other = source.replace("RLIMIT_STACK", "RLIMIT_NOFILE").replace("2 ** 20", "2 ** 40")
    assert stdio(judge, other, ("", "1")).verdict is Verdict.RE


# --- the author's part ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preamble", ["1 +", "raise ValueError", "import no_such_module", "exit()", "def f(:"])
@pytest.mark.parametrize(
    ("kind", "case", "fields"),
    [
        ("stdio", Case("", "1"), {}),
        ("function", Case("[]", "1"), {"fn_name": "f"}),
        ("assert", Case("assert f() == 1"), {}),
        ("assert", Case("want = 1\nassert f() == want"), {}),
    ],
)
def test_a_broken_preamble_is_the_problems_fault(
    judge: Judge, preamble: str, kind: Kind, case: Case, fields: dict[str, str]
) -> None:
    problem = Problem("p", kind, (case, case), preamble=preamble, limits=LIMITS, **fields)  # type: ignore[arg-type]
    with pytest.raises(InvalidProblem, match="preamble"):
        judge.judge(problem, Program("def f(): return 1\nprint(1)"))
    assert judge.judge(dataclasses.replace(problem, preamble=""), Program("print(1)\ndef f(): return 1")).passed == 2
