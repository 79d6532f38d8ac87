"""Hostile programs, really run, in every tier that isolates. Each is an attack, and the end that it must come to."""

from __future__ import annotations

import os

import pytest
from tiers import jail_of
from wide import wide

from sandbox.core import MIB, Case, CaseResult, Judgement, Limits, Problem, Program, Verdict
from sandbox.judging.judge import Judge
from sandbox.judging.prepared import PreparedProgram

tiered_jail = jail_of("A", wide("B"))

FAST = Limits(cpu_s=0.5, wall_s=20.0, memory_bytes=256 * MIB, output_bytes=1 * MIB, processes=32)

SMALL = Limits(cpu_s=20.0, wall_s=60.0, memory_bytes=128 * MIB)


@pytest.fixture(scope="module")
def judge(tiered_judge: Judge) -> Judge:
    return tiered_judge


def stdio(judge: Judge, source: str, stdin: str = "", expected: str = "ok", limits: Limits = FAST) -> CaseResult:
    return only(judge.judge(Problem("p", "stdio", (Case(stdin, expected),), limits=limits), Program(source)))


def call(judge: Judge, source: str, args: str = "[1]", expected: str = "2") -> CaseResult:
    problem = Problem("p", "function", (Case(args, expected),), fn_name="f", limits=FAST)
    return only(judge.judge(problem, Program(source)))


def asserts(judge: Judge, source: str, test: str) -> Judgement:
    return judge.judge(Problem("p", "assert", (Case(test),), limits=FAST), Program(source))


def only(done: Judgement) -> CaseResult:
    assert len(done.cases) == 1, done
    return done.cases[0]


def counted_alone(judge: Judge) -> bool:
    """The kernel counts a run's processes apart from all others, and refuses what is over the limit."""
    return judge.jail.tier == "A" or os.geteuid() == 0


def leftovers(judge: Judge) -> list[str]:
    """What the next program finds in the work directory, in /tmp and of other processes."""
    source = "import os\nprint(sorted(os.listdir('.')), os.listdir(os.environ['TMPDIR']))"
    problem = Problem("p", "stdio", (Case("", "[] []"),))
    return [] if judge.judge(problem, Program(source)).verdict is Verdict.AC else ["files"]


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_busy_loop_is_stopped_by_its_cpu_time(judge: Judge) -> None:
    done = stdio(judge, "while True: pass")
    assert done.verdict is Verdict.TLE
    assert "CPU" in done.message
    assert done.cpu_s >= 0.5


def test_a_loop_inside_the_c_library_is_stopped_too(judge: Judge) -> None:
    assert stdio(judge, "import re\nre.match(r'(a+)+$', 'a' * 64 + 'b')").verdict is Verdict.TLE


def test_catching_everything_does_not_catch_the_limit(judge: Judge) -> None:
    source = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
    source += "while True:\n  try:\n    while True: pass\n  except BaseException: pass"
    assert stdio(judge, source).verdict is Verdict.TLE


def test_a_sleeper_is_stopped_by_the_wall_clock(judge: Judge) -> None:
    done = stdio(judge, "import time\ntime.sleep(60)", limits=Limits(cpu_s=1, wall_s=0.3))
    assert done.verdict is Verdict.TLE
    assert "wall" in done.message


def test_a_program_that_stops_itself_is_stopped_by_the_wall_clock(judge: Judge) -> None:
    source = "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nprint('ok')"
    assert stdio(judge, source, limits=Limits(cpu_s=1, wall_s=0.3)).verdict is Verdict.TLE


def test_cpu_time_of_children_counts(judge: Judge) -> None:
    source = "import os\nfor _ in range(4):\n  if os.fork() == 0:\n    while True: pass\nos.wait()"
    done = stdio(judge, source)
    assert done.verdict is Verdict.TLE
    assert "CPU" in done.message


def test_memory_that_is_touched_is_a_memory_verdict(judge: Judge) -> None:
    assert stdio(judge, "x = []\nwhile True: x.append(b'x' * (1 << 20))", limits=SMALL).verdict is Verdict.MLE


def test_one_refused_allocation_is_a_memory_verdict(judge: Judge) -> None:
    assert stdio(judge, "x = bytearray(1 << 40)").verdict is Verdict.MLE
    assert call(judge, "def f(x): return len([0] * (1 << 40))").verdict is Verdict.MLE


def test_shared_anonymous_memory_counts(judge: Judge) -> None:
    source = "import mmap\nm = mmap.mmap(-1, 200 << 20)\n"
    source += "for i in range(0, 200 << 20, 4096): m[i] = 1\nprint('ok')"
    assert stdio(judge, source, limits=SMALL).verdict is Verdict.MLE


def test_memory_of_all_processes_is_one_sum(judge: Judge) -> None:
    source = (
        "import os, time\nfor _ in range(8):\n  if os.fork() == 0:\n    x = b'x' * (50 << 20)\n    time.sleep(60)\n"
    )
    assert stdio(judge, source + "time.sleep(60)", limits=SMALL).verdict is Verdict.MLE


@pytest.mark.parametrize("stream", ["1", "2"])
def test_an_output_flood_is_cut_off(judge: Judge, stream: str) -> None:
    assert stdio(judge, f"import os\nwhile True: os.write({stream}, b'x' * 65536)").verdict is Verdict.OLE


def test_one_line_of_a_gigabyte_is_cut_off(judge: Judge) -> None:
    source = "import os\nblock = b'x' * (1 << 20)\nfor _ in range(1024): os.write(1, block)"
    assert stdio(judge, source).verdict is Verdict.OLE


def test_a_flood_whose_errors_are_swallowed_is_still_one(judge: Judge) -> None:
    source = "import os\nfor _ in range(4000):\n  try: os.write(1, b'x' * 65536)\n  except OSError: pass"
    assert stdio(judge, source).verdict is Verdict.OLE


def test_a_flood_in_a_function_result_is_cut_off(judge: Judge) -> None:
    assert call(judge, "def f(x): return 'x' * (8 << 20)").verdict is Verdict.OLE


def test_a_fork_bomb_ends_and_leaves_nothing(judge: Judge) -> None:
    source = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
    verdict = Verdict.TLE if counted_alone(judge) else Verdict.RE
    assert stdio(judge, source, limits=Limits(cpu_s=0.3, wall_s=20, processes=32)).verdict is verdict
    assert stdio(judge, "print('ok')").verdict is Verdict.AC


def test_processes_are_capped(judge: Judge) -> None:
    source = "import os, time\nn = 0\ntry:\n  while True:\n    if os.fork() == 0: time.sleep(60)\n    n += 1\n"
    source += "except BlockingIOError: print('ok' if 16 <= n <= 32 else n)"
    done = stdio(judge, source)
    ended = (Verdict.AC, "") if counted_alone(judge) else (Verdict.RE, "limit of 32 processes")
    assert (done.verdict, done.message) == ended


def test_threads_are_capped(judge: Judge) -> None:
    source = "import threading, time\nfor _ in range(100):\n"
    source += "  threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\ntime.sleep(60)"
    assert stdio(judge, source).verdict is Verdict.RE


def test_descriptors_are_capped(judge: Judge) -> None:
    source = "import os\nn = 0\ntry:\n  while True: os.dup(0); n += 1\nexcept OSError: print('ok' if n < 64 else n)"
    assert stdio(judge, source).verdict is Verdict.AC


def test_a_full_work_directory_is_the_programs_own_error(judge: Judge) -> None:
    if judge.jail.tier != "A":
        pytest.skip("only tier A has a private file system to fill")
    source = "for i in range(100):\n  with open(f'f{i}', 'wb') as f: f.write(b'x' * (4 << 20))"
    done = stdio(judge, source)
    assert done.verdict is Verdict.RE
    assert "No space left" in done.message
    assert not leftovers(judge)


def test_inodes_are_capped(judge: Judge) -> None:
    if judge.jail.tier != "A":
        pytest.skip("only tier A has a private file system to fill")
    assert stdio(judge, "for i in range(10000): open(f'f{i}', 'w').close()").verdict is Verdict.RE
    assert not leftovers(judge)


def test_a_sparse_file_cannot_pass_the_file_limit(judge: Judge) -> None:
    source = "f = open('big', 'wb')\ntry: f.truncate(1 << 40)\nexcept OSError: print('ok')"
    assert stdio(judge, source).verdict is Verdict.AC


# --- what it leaves behind --------------------------------------------------------------------------------------------


def test_a_daemon_in_its_own_session_dies_with_the_run(judge: Judge) -> None:
    source = (
        "import os, time\nif os.fork() == 0:\n  os.setsid()\n  if os.fork(): os._exit(0)\n"
        "  while True: open('alive', 'a').write('x')\nprint('ok')"
    )
    assert stdio(judge, source).verdict is Verdict.AC
    assert not leftovers(judge)


def test_a_grandchild_that_holds_stdout_does_not_hold_us(judge: Judge) -> None:
    source = "import os, time\nif os.fork() == 0: time.sleep(60)\nprint('ok')"
    assert stdio(judge, source).wall_s < 2


def test_a_thread_that_never_ends_is_ended(judge: Judge) -> None:
    source = "import threading, time\nthreading.Thread(target=lambda: time.sleep(60)).start()\nprint('ok')"
    assert stdio(judge, source, limits=Limits(cpu_s=1, wall_s=0.5)).verdict is Verdict.TLE


def test_files_do_not_pass_from_run_to_run(judge: Judge) -> None:
    source = (
        "import os, tempfile\nopen('here', 'w').write('x')\nopen(tempfile.gettempdir() + '/there', 'w').write('x')\n"
        "d = '.'\nfor _ in range(300):\n  d += '/d'\n  os.mkdir(d)\nos.chmod('d', 0)\nprint('ok')"
    )
    assert stdio(judge, source).verdict is Verdict.AC
    assert not leftovers(judge)


def test_state_of_the_interpreter_does_not_pass_from_run_to_run(judge: Judge) -> None:
    stdio(judge, "import builtins, sys\nbuiltins.print = None\nsys.modules['math'] = None\nsys.setrecursionlimit(50)")
    assert stdio(judge, "import math\nprint('ok')").verdict is Verdict.AC


def test_chance_and_hash_order_are_the_same_in_every_run(judge: Judge) -> None:
    source = "import random\nprint(random.random(), list({'a', 'b', 'c', 'd'}))"
    with PreparedProgram(judge.jail, judge.builder, Program(source)) as prepared:
        outputs = {prepared.run(Limits())[0].stdout for _ in range(2)}
    assert len(outputs) == 1


# --- ending early -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "attack",
    [
        "import sys\nsys.exit(0)",
        "raise SystemExit",
        "import os\nos._exit(0)",
        "import atexit, os\natexit.register(os._exit, 0)\ndef f(x): raise SystemExit(0)",
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        "def f(x):\n  import sys\n  sys.exit(0)",
        "def f(x):\n  import os\n  os._exit(0)",
        "import threading, os\nthreading.Timer(0, os._exit, (0,)).start()\ndef f(x):\n  while True: pass",
    ],
)
@pytest.mark.parametrize("test", ["assert f(1) == 2", "for v in [1]:\n  assert f(v) == 2"])
def test_ending_before_the_asserts_passes_none_of_them(judge: Judge, attack: str, test: str) -> None:
    assert asserts(judge, attack, test).verdict is Verdict.RE
    assert call(judge, attack).verdict is Verdict.RE


def test_the_right_output_with_a_bad_exit_code_is_a_runtime_error(judge: Judge) -> None:
    assert stdio(judge, "print('ok')\nraise SystemExit(1)").verdict is Verdict.RE
    assert stdio(judge, "print('ok')\n1 / 0").verdict is Verdict.RE
    assert stdio(judge, "print('ok')\nexit()").verdict is Verdict.AC


def test_posing_as_killed_by_a_limit_is_a_runtime_error(judge: Judge) -> None:
    for number in ("SIGXCPU", "SIGKILL", "SIGXFSZ", "SIGSEGV"):
        source = (
            f"import os, signal\nsignal.signal(signal.{number}, signal.SIG_DFL) if '{number}' != 'SIGKILL' else 0\n"
        )
        assert stdio(judge, source + f"os.kill(os.getpid(), signal.{number})").verdict is Verdict.RE
    assert stdio(judge, "raise SystemExit(137)").verdict is Verdict.RE


# --- forging the answer -----------------------------------------------------------------------------------------------


ALWAYS = "class A:\n  def __eq__(self, other): return True\n  def __ne__(self, other): return False\n"


@pytest.mark.parametrize(
    "attack",
    [
        ALWAYS + "  __hash__ = None\n  def __bool__(self): return True\ndef f(x): return A()",
        "class A(int):\n  def __eq__(self, other): return True\n  __hash__ = int.__hash__\ndef f(x): return A(7)",
        "class A(list):\n  def __eq__(self, other): return True\ndef f(x): return A([7])",
        "def f(x): return True",
        "def f(x): return '2'",
        "def f(x): return 2.0",
        "def f(x): return [2]",
        "def f(x): return float('nan')",
        "def f(x): return None",
        "def f(x): return lambda: 2",
        "def f(x):\n  import sys\n  a = []\n  a.append(a)\n  return a",
        "def f(x):\n  a = []\n  for _ in range(100000): a = [a]\n  return a",
    ],
)
def test_a_value_that_only_poses_as_the_answer_is_wrong(judge: Judge, attack: str) -> None:
    assert call(judge, attack).verdict is Verdict.WA


def test_an_always_equal_object_does_not_pass_a_rewritten_assert(judge: Judge) -> None:
    for test in ("assert f(1) == 2", "assert f(1) != 3", "assert f(1) in [2]", "assert not f(1) != 2"):
        done = asserts(judge, ALWAYS + "def f(x): return A()", test)
        assert (done.verdict, done.weak) == (Verdict.WA, False)


PEEK = """
import gc, sys
def f(x):
    found = []
    frame = sys._getframe()
    while frame:
        found += [repr(v) for v in list(frame.f_locals.values()) + list(frame.f_globals.values())]
        frame = frame.f_back
    found += [repr(o) for o in gc.get_objects() if isinstance(o, (str, bytes, dict, list, tuple))]
    for fd in range(64):
        try:
            import os
            found.append(repr(os.pread(fd, 1 << 20, 0)))
        except OSError: pass
    try: found.append(open('/proc/self/environ').read() + open('/proc/self/cmdline').read())
    except OSError: pass
    needle = ''.join(reversed('24-ELDEEN'))
    return needle if any(needle in text for text in found) else 'nothing found'
"""


def test_the_expected_value_is_nowhere_in_the_process(judge: Judge) -> None:
    assert call(judge, PEEK, expected='"NEEDLE-42"').verdict is Verdict.WA
    assert asserts(judge, PEEK, "assert f(1) == 'NEEDLE-42'").verdict is Verdict.WA


FORGE = """
import json, os
frame = bytes(32) + json.dumps({"ok": True, "values": [2]}).encode()
for fd in range(3, 1024):
    for write in (os.write, lambda fd, data: os.pwrite(fd, data, 0)):
        try: write(fd, frame)
        except OSError: pass
print(json.dumps({"ok": True, "values": [2]}))
os._exit(0)
"""


def test_a_frame_without_the_nonce_is_not_believed(judge: Judge) -> None:
    assert call(judge, FORGE).verdict is Verdict.RE
    assert asserts(judge, FORGE, "for v in [1]:\n  assert f(v) == 2").verdict is Verdict.RE


def test_patched_builtins_and_modules_do_not_help(judge: Judge) -> None:
    attack = (
        'import builtins, json, os, sys\njson.dumps = lambda *a, **k: \'{"ok": true, "values": [2]}\'\n'
        "builtins.AssertionError = Exception\nbuiltins.isinstance = lambda *a: True\nos.pread = lambda *a: b''\n"
        "def f(x): return 3"
    )
    assert call(judge, attack).verdict in (Verdict.WA, Verdict.RE)
    assert asserts(judge, attack, "assert f(1) == 2").verdict in (Verdict.WA, Verdict.RE)


@pytest.mark.parametrize("value", ["10**6000", "-(10**6000)", "[1] * 100000", "{'a': (1, 2)}", "1e308 * 10"])
def test_large_and_odd_values_cross_unharmed(judge: Judge, value: str) -> None:
    assert asserts(judge, f"def f(x): return {value}", "assert f(1) != 3 and f(1) == f(1)").verdict is Verdict.AC


def test_an_integer_over_the_digit_limit_can_be_printed(judge: Judge) -> None:
    assert stdio(judge, "print(10 ** 5000)", expected="1" + "0" * 5000).verdict is Verdict.AC
