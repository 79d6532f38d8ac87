"""A state that calls go on with: what it keeps, what ends it, and what a hostile program cannot do with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from wide import every, wide

from sandbox import IsolationUnavailable, Limits
from sandbox.core.nouns import MIB, Isolation
from sandbox.jail.jail import Jail
from sandbox.session import live_program
from sandbox.session.output import Output
from sandbox.session.sessions import Sessions

LIMITS = Limits(cpu_s=20, wall_s=60, memory_bytes=192 * MIB, output_bytes=MIB)
FIND = """
import os, socket, stat, threading, time
def find():
    for fd in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                return fd
        except OSError:
            pass
"""


@pytest.fixture(scope="module", params=["A", wide("B")])
def tier(request: pytest.FixtureRequest) -> Isolation:
    """Those that isolate."""
    found: Isolation = request.param
    try:
        Jail(found).close()
    except IsolationUnavailable as error:
        pytest.skip(str(error))
    return found


def ask(tier: Isolation, *codes: str, limits: Limits = LIMITS, timeout_s: float | None = None) -> list[Output]:
    """What the calls of one session gave."""

    async def main() -> list[Output]:
        async with Sessions(1, isolation=tier, limits=limits) as sessions:
            session = sessions.open()
            return [await session.execute(code, timeout_s=timeout_s) for code in codes]

    return asyncio.run(main())


@pytest.mark.promise("sessions")
def test_variables_imports_and_files_stay_between_calls(tier: Isolation) -> None:
    codes = ("import math\nx = 20", "x += 1\nopen('note', 'w').write('kept')", "math.sqrt(x + 4), open('note').read()")
    first, second, third = ask(tier, *codes)
    assert (first.value, second.value, third.value) == (None, "4", "(5.0, 'kept')")
    assert (first.fresh, second.fresh, third.fresh) == (True, False, False)
    assert {output.ended for output in (first, second, third)} == {None}


def test_what_a_call_prints_is_told_with_it_whoever_prints(tier: Isolation) -> None:
    code = "import os, sys\nprint('one')\nos.system('echo two')\nprint('three', file=sys.stderr)"
    first, second = ask(tier, code, "print('four', end='')")
    assert (first.stdout, first.stderr, second.stdout, second.stderr) == ("one\ntwo\n", "three\n", "four", "")


def test_an_error_is_a_traceback_of_the_calls_own_lines_and_the_state_is_kept(tier: Isolation) -> None:
    codes = ("x = 1\ndef f():\n    return x / 0", "f()", "x =", "raise SystemExit(4)", "input()", "x")
    _, raised, unreadable, left, reading, last = ask(tier, *codes)
    assert raised.error is not None
    assert raised.error.startswith(
        'Traceback (most recent call last):\n  File "<call 2>", line 1, in <module>\n    f()'
    )
    assert "    return x / 0\n" in raised.error
    assert raised.error.endswith("ZeroDivisionError: division by zero")
    assert "main.py" not in raised.error
    assert str(unreadable.error).startswith('  File "<call 3>", line 1')
    assert str(left.error).endswith("SystemExit: 4")
    assert str(reading.error).endswith("EOFError: EOF when reading a line")
    assert (last.value, last.fresh) == ("1", False)


def test_long_output_is_its_beginning_and_its_end(tier: Isolation) -> None:
    output, second = ask(tier, "print('a' * 100_000 + 'z')", "'b' * 100_000")
    assert output.stdout.startswith("a" * 8000)
    assert output.stdout.endswith("aaaz\n")
    assert "[... 83618 bytes ...]" in output.stdout
    assert len(output.stdout) < 17_000
    assert second.value is not None
    assert len(second.value) < 9000


def test_a_call_that_sleeps_too_long_ends_the_state_and_the_next_says_so(tier: Isolation) -> None:
    codes = ("x = 1", "import time\nprint('before')\ntime.sleep(900)", "'x' in globals()", "x = 2", "x")
    first, slept, next_one, _, last = ask(tier, *codes, timeout_s=1)
    assert (first.ended, slept.ended, slept.cause) == (None, "timed out", "wall limit")
    assert slept.stdout == "before\n"
    assert (next_one.value, next_one.fresh, last.value) == ("False", True, "2")


def test_each_call_has_its_own_cpu_time(tier: Isolation) -> None:
    burn = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    limits = Limits(cpu_s=0.45, wall_s=60)
    outputs = ask(tier, *[burn] * 3, "while True: pass", limits=limits)
    assert [output.ended for output in outputs] == [None] * 3 + ["timed out"]
    assert outputs[-1].cause == "cpu limit"


def test_threads_that_a_call_leaves_behind_are_under_limits_too(tier: Isolation) -> None:
    spin = "import threading\ndef spin():\n    while True: pass\nthreading.Thread(target=spin).start()"
    outputs = ask(tier, spin, "import time\ntime.sleep(30)", limits=Limits(cpu_s=0.5, wall_s=60))
    assert outputs[1].fresh or outputs[1].cause == "cpu limit"


def test_memory_that_is_refused_is_an_error_and_memory_that_is_taken_is_the_end(tier: Isolation) -> None:
    share = "import os\nfor _ in range(4):\n  if os.fork() == 0:\n    x = b'x' * (100 << 20)\n    while True: pass"
    refused, taken, after = ask(tier, "x = b'x' * (1 << 40)", f"{share}\nos.wait()", "1")
    assert str(refused.error).endswith("MemoryError")
    assert (refused.ended, taken.ended, taken.fresh) == (None, "out of memory", False)
    assert (after.value, after.fresh) == ("1", True)


def test_a_program_that_forks_without_end_hurts_only_itself(tier: Isolation) -> None:
    code = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    bomb, after = ask(tier, code, "1", limits=Limits(cpu_s=0.5, wall_s=10, processes=16))
    assert bomb.ended in ("killed", "timed out", "out of memory")
    assert (after.value, after.fresh) == ("1", True)


FORGE = f"{FIND}\nos.write(find(), {{}})\ntime.sleep(900)"
EMPTY = f"{FIND}\ns = socket.socket(fileno=os.dup(find()))\ns.send(b'')\ntime.sleep(900)"
NO_ANSWER = "an answer that is none"
FRAMES = """
import os, socket, sys, time
frame = sys._getframe()
while 'word' not in frame.f_locals:
    frame = frame.f_back
frame.f_locals['channel'].send(frame.f_locals['word'] + {!r})
time.sleep(900)
"""


@pytest.mark.parametrize(
    ("code", "ended", "cause"),
    [
        ("import os\nos._exit(3)", "killed", "it ended itself with exit code 3"),
        ("import os\nos.kill(os.getpid(), 9)", "killed", "signal SIGKILL"),
        ("import os\nos.closerange(3, 64)", "killed", "it ended itself with exit code 1"),
        ("import os\nos.kill(os.getpid(), 19)", "timed out", "wall limit"),
        wide(f"{FIND}\nos.close(find())\ntime.sleep(900)", "timed out", "wall limit"),
        ("import ctypes\nctypes.string_at(0)", "killed", "signal SIGSEGV"),
        ("import ctypes\nctypes.CDLL(None).ptrace(0, 0, 0, 0)", "killed", "security: ptrace"),
        ("while True: print('flood' * 1000)", "killed", f"output limit of {MIB} bytes"),
        (FORGE.format("b'x' * 16 + b'[\"forged\", null]'"), "killed", NO_ANSWER),
        (FORGE.format("b'x'"), "killed", NO_ANSWER),
        (FORGE.format("b'x' * 100_000"), "killed", NO_ANSWER),
        (EMPTY, "killed", NO_ANSWER),
        wide(EMPTY.replace("sleep(900)", "sleep(0.2)"), "killed", NO_ANSWER),
    ],
)
def test_whatever_it_does_is_its_end_and_never_a_fault_of_ours(
    tier: Isolation, code: str, ended: str, cause: str
) -> None:
    done, after = ask(tier, code, "1", timeout_s=1.0)
    assert (done.ended, done.cause, done.value) == (ended, cause, None)
    assert done.stdout.startswith("floodflood") == ("flood" in code)
    assert (after.value, after.ended, after.fresh) == ("1", None, True)


@pytest.mark.parametrize(
    "body",
    every(3, [b'{"forged": 1, "other": 2}', b'"ab"', b"{}", b"[]", b"[null]", b'["a", null, null]', b"[1, null]",
              b'[["a"], null]', b"null", b"12", b"", b'{"a": null, "a": null}', b"[" * 5000, b'["a", "b"] x', b"\xff"]),
)  # fmt: skip
def test_an_answer_of_another_shape_is_the_end(tier: Isolation, body: bytes) -> None:
    forged, after = ask(tier, FRAMES.format(body), "1", timeout_s=5)
    assert (forged.ended, forged.cause, forged.value) == ("killed", NO_ANSWER, None)
    assert (after.value, after.fresh) == ("1", True)


def test_who_closes_the_channel_of_its_answers_is_not_waited_for(
    tier: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_program, "_FAREWELL_S", 0.5)
    for code in (
        f"{FIND}\nos.close(find())\ntime.sleep(900)",
        f"{FIND}\nsocket.socket(fileno=find()).shutdown(2)\ntime.sleep(900)",
    ):
        done, after = ask(tier, code, "1", timeout_s=50)
        assert (done.ended, done.cause) == ("killed", "it closed the channel of its answers")
        assert (after.value, after.fresh) == ("1", True)


def test_its_parent_cannot_be_stopped(tier: Isolation) -> None:
    code = "import os\ntry: os.kill(os.getppid(), {})\nexcept OSError: pass"
    *_, last = ask(tier, code.format(19), code.format(9), "1", timeout_s=5)
    assert last.value == "1"


def test_an_answer_to_the_call_before_is_none_to_this_one(tier: Isolation) -> None:
    """It keeps the word of a call, and says it once more in the next."""
    keep = f"{FIND}\nimport sys\nword = sys._getframe(2).f_locals['word']"
    again = "os.write(find(), word + b'[\"forged\", null]')\ntime.sleep(900)"
    kept, done, after = ask(tier, keep, again, "1")
    assert (kept.error, kept.ended) == (None, None)
    assert (done.cause, done.value, after.fresh) == ("an answer that is none", None, True)


def test_a_reader_of_values_that_lie_gets_text(tier: Isolation) -> None:
    lie = "class Lie:\n    def __repr__(self): {}\nLie()"
    raised, endless, odd = ask(tier, lie.format("raise KeyError('no')"), lie.format("return 7"), "'\\ud800'")
    assert str(raised.error).endswith("KeyError: 'no'")
    assert "TypeError" in str(endless.error)
    assert odd.value == "'\\ud800'"


@pytest.mark.promise("sessions")
def test_two_sessions_see_nothing_of_each_other(tier: Isolation) -> None:
    async def main() -> list[Any]:
        async with Sessions(2, isolation=tier, limits=LIMITS) as sessions:
            first, second = sessions.open(), sessions.open()
            await first.execute("import os\nx = 1\nopen('mine', 'w').write('secret')\nos.environ['MINE'] = 'secret'")
            seen = "import os\nos.listdir('.'), os.environ.get('MINE'), 'x' in globals()"
            found = [await second.execute(seen)]
            await first.close()
            third = sessions.open()
            return [*found, await third.execute(seen)]

    assert [output.value for output in asyncio.run(main())] == ["([], None, False)"] * 2
