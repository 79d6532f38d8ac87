"""Files that are run once, in a fresh jail: what came of it, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from pooling import family, living, run_directories

from sandbox.core import MIB, Limits
from sandbox.errors import Cancelled, PoolClosed
from sandbox.session import Finished, Sessions

LIMITS = Limits(cpu_s=10, wall_s=60, output_bytes=MIB)
TESTS = """
import sys, unittest
from thing.core import double

class Public(unittest.TestCase):
    def test_two(self):
        self.assertEqual(double(2), 4)

print(sys.argv[1:], input())
unittest.main(argv=['public'])
"""


def run(files: dict[str, str], limits: Limits = LIMITS, **how: Any) -> Finished:
    async def main() -> Finished:
        async with Sessions(1, limits=limits) as sessions:
            return await sessions.open().run_files(files, **how)

    found = run_directories()
    done = asyncio.run(main())
    assert run_directories() <= found
    return done


@pytest.mark.parametrize(("factor", "code"), [(2, 0), (3, 1)])
def test_public_tests_run_beside_the_program(factor: int, code: int) -> None:
    files = {"thing/core.py": f"def double(x):\n    return x * {factor}\n", "tests.py": TESTS}
    done = run(files, entry="tests.py", arguments=["-v"], stdin="hello\n")
    assert (done.stdout, done.exit_code, done.ended, done.cause) == ("['-v'] hello\n", code, None, "")
    assert ("OK" if code == 0 else "AssertionError: 6 != 4") in done.stderr


def test_a_program_of_another_language_is_compiled_first() -> None:
    source = '#include "half.h"\n#include <cstdio>\nint main() { printf("%d", half(8)); return 3; }\n'
    files = {"main.cpp": source, "half.h": "inline int half(int x) { return x / 2; }\n"}
    done = run(files, language="cpp")
    assert (done.stdout, done.exit_code, done.ended) == ("4", 3, None)
    broken = run({**files, "half.h": "int half() { return halves; }\n"}, language="cpp")
    assert (broken.exit_code, broken.ended, broken.cause) == (None, None, "it does not compile")
    assert "‘halves’ was not declared" in broken.stderr


@pytest.mark.parametrize(
    ("source", "ended", "cause"),
    [
        ("while True: pass", "timed out", "cpu limit"),
        ("while True: print('x' * 10000)", "killed", "output limit"),
        ("import os\nos.kill(os.getpid(), 9)", "killed", "signal SIGKILL"),
    ],
)
def test_what_ends_it_is_told(source: str, ended: str, cause: str) -> None:
    done = run({"main.py": source}, Limits(cpu_s=1, wall_s=60, output_bytes=MIB))
    assert (done.exit_code, done.ended, done.cause) == (None, ended, cause)
    assert len(done.stdout) < 17_000


@pytest.mark.parametrize("files", [{}, {"../out.py": "1"}, {"a": "1", "a/b": "2"}])
def test_files_that_cannot_lie_in_one_directory_are_the_callers_error(files: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="file") as caught:
        run(files)
    assert type(caught.value) is ValueError


def test_a_language_that_is_none_is_the_callers_error_and_no_fault_of_ours() -> None:
    with pytest.raises(ValueError, match="language='cobol' is unknown; use one of python") as caught:
        run({"main.cob": "STOP RUN."}, language="cobol")
    assert type(caught.value) is ValueError


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_run_that_is_given_up_leaves_nothing(how: str) -> None:
    async def main() -> None:
        before = set(family(os.getpid()))
        async with Sessions(1, limits=LIMITS) as sessions:
            session = sessions.open()
            work = asyncio.create_task(session.run_files({"main.py": "import time\ntime.sleep(900)"}))
            async with asyncio.timeout(30):
                while set(family(os.getpid())) <= before:  # noqa: ASYNC110 - the state of another process
                    await asyncio.sleep(0.01)
            if how == "cancel":
                work.cancel()
            else:
                await session.close()
            with pytest.raises((asyncio.CancelledError, Cancelled, PoolClosed)):
                await work
            assert not living([process for process in family(os.getpid()) if process not in before])

    asyncio.run(main())
