"""A problem in sealed memory: what goes in comes out, known by its digest, and nobody can change it."""

from __future__ import annotations

import dataclasses
import json
import os

import pytest

from sandbox import Case, Limits, Problem, Program, Subtask
from sandbox.pool import problem_memfd

PLAIN = Problem("plain", "stdio", (Case("3 4\n", "7"), Case("", "\n0\n")))
FILES = Program(files=(("main.py", "import a"), ("a.py", "\udcff")), entry="main.py")
EVERY_PART = Case("i", "e", arguments=("1",), files=(("a/b", "\udcff"),), referee_arguments=("x", "y"))
PROBLEMS = [
    PLAIN,
    Problem("texts", "stdio", (Case("é\udc80\x00", "𝄞" * 1000), Case("x" * (3 << 20), "y"))),
    Problem("points", "stdio", (Case("1", "2", "a"), Case("2", "3")), subtasks=(Subtask("a", 5),), limits=Limits(2)),
    Problem("checked", "stdio", (Case("1"),), compare="checker", checker=Program("int main() {}", "cpp")),
    Problem("talks", "interactive", (Case("1"),), interactor=Program("pass"), convention="kattis"),
    Problem("called", "function", (Case("[1]", "2"),), "Solution.f", "import math"),
    Problem("asserted", "assert", (Case("int main() {}"),), language="cpp"),
    Problem(
        "every part", "stdio", (EVERY_PART, Case("")), compare="checker", checker=FILES, convention="kattis", passes=3
    ),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id)
def test_what_is_written_in_memory_or_as_json_is_read(problem: Problem) -> None:
    assert Problem.from_json(json.loads(json.dumps(problem.to_json()))) == problem
    held, written = problem_memfd.write(problem)
    assert problem_memfd.read_problem(held) == problem
    assert written.size == os.fstat(held.fd).st_size


def test_equal_problems_have_one_digest_and_others_another() -> None:
    equal = Problem("".join(["pl", "ain"]), "stdio", [Case("3 4" + "\n", "7"), Case("", "\n0\n")])  # type: ignore[arg-type]
    assert problem_memfd.write(equal)[1] == problem_memfd.write(PLAIN)[1]
    others = [
        dataclasses.replace(PLAIN, id="other"),
        dataclasses.replace(PLAIN, limits=Limits(5)),
        dataclasses.replace(PLAIN, cases=(Case("3 4\n7", ""), *PLAIN.cases[1:])),  # the same bytes, cut elsewhere
        dataclasses.replace(PLAIN, cases=PLAIN.cases[::-1]),
    ]
    assert len({problem_memfd.write(problem)[1].digest for problem in [PLAIN, *others]}) == 5


def test_nobody_can_change_what_was_written() -> None:
    held, _ = problem_memfd.write(PLAIN)
    for change in (lambda: os.pwrite(held.fd, b"!", 0), lambda: os.ftruncate(held.fd, 0)):
        with pytest.raises(PermissionError):
            change()
    again = os.open(f"/proc/self/fd/{held.fd}", os.O_RDWR)
    with pytest.raises(PermissionError):
        os.write(again, b"!")
    os.close(again)


def test_the_memory_goes_with_the_last_reference() -> None:
    held, _ = problem_memfd.write(PLAIN)
    fd = held.fd
    del held
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
