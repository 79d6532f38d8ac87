"""Files that are run once, in a fresh jail: what came of it, and that nothing of it is left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandbox.core.nouns import MIB, Limits
from sandbox.session.output import Finished
from sandbox.session.sessions import Sessions

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

    return asyncio.run(main())


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
