"""A Python program has its own source beside it: to read, to import, to start again, and in tracebacks."""

from __future__ import annotations

import os
import sys

import pytest
from wide import every

from sandbox import Case, Judgement, Limits, Problem, Program, Verdict
from sandbox.judging.judge import Judge

LIMITS = Limits(cpu_s=10, wall_s=60)
METHODS = ("spawn", "forkserver", "fork")
MP = "import multiprocessing as mp\nc = mp.get_context({method!r})\n"
# each prints 30 with each of the three ways to start a process
PROCESSES = {
    "a pool": "def f(x): return x * x\nif __name__ == '__main__':\n"
    "    with c.Pool(2) as p: print(sum(p.map(f, range(5))))",  # one left open may hang the interpreter at its end
    "a queue": "def f(q): q.put(30)\nif __name__ == '__main__':\n    q = c.Queue()\n"
    "    p = c.Process(target=f, args=(q,)); p.start(); print(q.get()); p.join()",
    "a value and a lock": "def f(v, l):\n    for _ in range(10):\n        with l: v.value += 1\n"
    "if __name__ == '__main__':\n    v, l = c.Value('i', 0), c.RLock()\n"
    "    ps = [c.Process(target=f, args=(v, l)) for _ in range(3)]\n"
    "    [p.start() for p in ps]; [p.join() for p in ps]; print(v.value)",
    "an array, an event, a barrier and a semaphore": "def f(a, e, b, s):\n    e.wait(); b.wait()\n"
    "    with s: a[0] += 15\n"
    "if __name__ == '__main__':\n    a, e, b, s = c.Array('i', 2), c.Event(), c.Barrier(2), c.Semaphore(1)\n"
    "    ps = [c.Process(target=f, args=(a, e, b, s)) for _ in range(2)]\n"
    "    [p.start() for p in ps]; e.set(); [p.join() for p in ps]; print(a[0])",
    "an executor": "from concurrent.futures import ProcessPoolExecutor\ndef f(x): return x * x\n"
    "if __name__ == '__main__':\n    with ProcessPoolExecutor(2, mp_context=c) as e: print(sum(e.map(f, range(5))))",
    "an object of its class": "class P:\n    def __init__(self, x): self.x = x\ndef f(p, q): q.put(P(p.x + 1))\n"
    "if __name__ == '__main__':\n    q = c.SimpleQueue()\n    p = c.Process(target=f, args=(P(29), q)); p.start()\n"
    "    print(q.get().x); p.join()",
}
# each prints 30
SOURCES = {
    "inspect.getsourcelines": "import inspect\ndef f():\n    return 1\n"
    "print(30 if inspect.getsourcelines(f) == (['def f():\\n', '    return 1\\n'], 2) else 0)",
    "import main": "def f(): return 30\nif __name__ == '__main__':\n    import main\n    print(main.f())",
    "find_spec": "import importlib.util\n"
    "print(30 if importlib.util.find_spec('main').origin.endswith('main.py') else 0)",
    "runpy": "import runpy\nx = 30\nif __name__ == '__main__':\n    print(runpy.run_path('main.py')['x'])",
    "open, __file__": "print(30 if '__file__' in open(__file__).read() else 0)",
    "os.system": "import os\nos.system('tail -n 1 main.py')\n#\n30",
    "traceback, in a thread": "import traceback, threading\nr = []\ndef f():\n    try: 1 / 0\n"
    "    except Exception: r.append(traceback.format_exc())\n"
    "t = threading.Thread(target=f); t.start(); t.join()\nprint(30 if '    try: 1 / 0\\n' in r[0] else r)",
    "warnings": "import warnings, io, sys\ns = sys.stderr = io.StringIO()\nwarnings.warn('x')\n"
    "print(30 if 'warnings.warn(' in s.getvalue() else s.getvalue())",
    "a hook": "import sys, traceback\ndef hook(*error):\n"
    "    print(30 if '1 / 0' in ''.join(traceback.format_exception(*error)) else 0)\n"
    "    sys.exit(0)\nsys.excepthook = hook\n1 / 0",
    "doctest": "def f():\n    '''\n    >>> f()\n    30\n    '''\n    return 30\nimport doctest\n"
    "print(f() if doctest.testmod().attempted == 1 else 0)",
    "a helper that it writes": "with open('helper.py', 'w') as f: f.write('x = 30')\nimport helper\nprint(helper.x)",
    "text that is no ASCII": "# é 世 \U0001f600\nprint(30 if '世' in open(__file__, encoding='utf-8').read() else 0)",
}  # fmt: skip
ALL = {
    **{
        f"{name}, {method}": MP.format(method=method) + source
        for name, source in PROCESSES.items()
        for method in METHODS
    },
    **SOURCES,
}


def printed(judge: Judge, source: str, expected: str = "30", count: int = 3) -> Judgement:
    return judge.judge(Problem("p", "stdio", (Case("", expected),) * count, limits=LIMITS), Program(source))


@pytest.mark.parametrize("name", every(4, [*ALL]))
def test_a_program_finds_itself(tiered_judge: Judge, name: str) -> None:
    done = printed(tiered_judge, ALL[name])
    assert done.verdict is Verdict.AC, done.cases


def test_a_program_starts_itself(tiered_judge: Judge) -> None:
    if tiered_judge.jail.tier == "B" and os.geteuid() == 0 and not os.stat(sys.executable).st_mode & 1:
        pytest.skip("the interpreter is root's alone")
    source = (
        "import os, subprocess, sys\nif not os.access(sys.executable, os.X_OK) or len(sys.argv) > 1: print(30)\n"
        "else: print(subprocess.run([sys.executable, 'main.py', 'x'], capture_output=True, text=True).stdout)"
    )
    assert printed(tiered_judge, source).verdict is Verdict.AC


CALLED = (
    "import inspect, multiprocessing, traceback\ndef square(x): return x * x\ndef f(x):\n"
    "    with multiprocessing.get_context('{method}').Pool(2) as pool: total = sum(pool.map(square, range(x)))\n"
    "    try: 1 / 0\n    except Exception: told = '1 / 0' in traceback.format_exc()\n"
    "    import main\n"
    "    return total if told and main.f is f and 'told' in inspect.getsource(f) and open(__file__).read() else 0"
)
NODE = "class Node:\n    def __init__(self, value): self.value = value\n"
KINDS = {
    "function": Problem("p", "function", (Case("[5]", "30"),) * 2, fn_name="f", limits=LIMITS),
    "assert, outside": Problem("p", "assert", (Case("assert f(5) == 30"),), limits=LIMITS),
    "assert, apart": Problem("p", "assert", (Case("for x in [5, 5]:\n    assert f(x) == 30"),), limits=LIMITS),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_function_finds_its_module(tiered_judge: Judge, kind: str, method: str) -> None:
    done = tiered_judge.judge(KINDS[kind], Program(CALLED.replace("{method}", method)))
    assert done.verdict is Verdict.AC, done.cases


@pytest.mark.parametrize("method", METHODS)
def test_processes_know_the_preambles_names_and_lines_are_the_programs_own(tiered_judge: Judge, method: str) -> None:
    source = (
        "import inspect, multiprocessing\ndef g(node: Node): return Node(node.value + 1)\ndef f(x):\n"
        "    assert inspect.getsource(g) == 'def g(node: Node): return Node(node.value + 1)\\n'\n"
        f"    with multiprocessing.get_context('{method}').Pool(1) as pool: return pool.map(g, [Node(x)])[0].value"
    )
    problem = Problem("p", "function", (Case("[29]", "30"),), fn_name="f", preamble=NODE, limits=LIMITS)
    done = tiered_judge.judge(problem, Program(source))
    assert done.verdict is Verdict.AC, done.cases


# --- what the file is not ---------------------------------------------------------------------------------------------


def test_it_holds_the_program_and_nothing_of_the_problem(tiered_judge: Judge) -> None:
    source = "def f(x):\n    import os\n    return [os.listdir('.'), open('main.py').read()]"
    wanted = f"[['main.py'], {source!r}]"
    for test in (
        f"assert f(1) == {wanted}",
        f"for x in [1]:\n    assert f(x) == {wanted}",
        f"def t(x):\n    assert f(x) == {wanted}\nt(1)",
    ):
        problem = Problem("p", "assert", (Case(test),), preamble="secret = 1", limits=LIMITS)
        done = tiered_judge.judge(problem, Program(source))
        assert done.verdict is Verdict.AC, (test, done.cases)


LOOKS = """
import os
found = os.stat('main.py'), os.stat('.')
own = os.stat('/').st_dev != found[0].st_dev  # on a disk that others use too, numbers of files say nothing
print([(x.st_mode, own and x.st_ino, x.st_nlink, x.st_mtime_ns, x.st_atime_ns) for x in found], len(os.listdir('.')))
"""
NOTES = {
    "writes it": "try:\n    with open('main.py', 'a') as f: f.write('#')\nexcept OSError: pass",
    "replaces it": "os.unlink('main.py')\nwith open('main.py', 'w') as f: f.write('note')",
    "renames it": "os.rename('main.py', 'note')",
    "links it": "os.link('main.py', 'note') if os.getuid() else None",
    "makes it a folder": "os.unlink('main.py'); os.mkdir('main.py'); open('main.py/x', 'w').close()",
    "makes it a link": "os.unlink('main.py'); os.symlink('/etc/passwd', 'main.py')",
    "removes it": "os.unlink('main.py')",
    "changes its mode": "try: os.chmod('main.py', 0o777)\nexcept OSError: pass",
    "changes its times": "try: os.utime('main.py', (5, 5))\nexcept OSError: pass",
    "changes its folder": "try: os.chmod('.', 0o755); os.utime('.', (5, 5))\nexcept OSError: pass",
    "nothing": "",
}  # fmt: skip


@pytest.mark.parametrize("name", NOTES)
def test_what_a_run_does_to_it_is_not_seen_by_the_next(tiered_judge: Judge, name: str) -> None:
    """Each of ten runs prints what it finds; the first of them is what all must print."""
    source = LOOKS + NOTES[name]
    problem = Problem("p", "stdio", (Case("", "?"),) * 10, limits=LIMITS)
    told = set()
    for _ in range(2):  # the second is another program for the jail
        judge = Judge(tiered_judge.jail, tiered_judge.builder, stop_at_first_failure=False)
        found = _outputs(judge, problem, Program(source))
        told.add(frozenset(found))
    assert all(len(each) == 1 for each in told), told


def _outputs(judge: Judge, problem: Problem, program: Program) -> list[bytes]:
    from sandbox.judging.prepared import PreparedProgram

    with PreparedProgram(judge.jail, judge.builder, program, problem) as prepared:
        found = []
        for left in reversed(range(len(problem.cases))):
            prepared.start_case(problem.limits, problem.cases[0], left=left + 1)
            found.append(prepared.finish()[0].stdout)
    return found


def test_a_case_may_bring_a_file_of_its_name(tiered_judge: Judge) -> None:
    cases = (Case("", "x", files=(("main.py", "x"),)), Case("", "x", files=(("main.py/x", ""),)), Case("", "x"))
    source = (
        "import os\ntext = 'x' if os.path.isdir('main.py') else open('main.py').read()\n"
        "print('x' if text == 'x' or 'isdir' in text else 0)"
    )
    done = tiered_judge.judge(Problem("p", "stdio", cases, limits=LIMITS), Program(source))
    assert (done.verdict, done.passed) == (Verdict.AC, 3), done.cases
