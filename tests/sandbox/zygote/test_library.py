"""Installed packages for Python programs, also where their environment lies in a place that the jail hides."""

from __future__ import annotations

import _bisect
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.build.builder import Builder
from sandbox.core.nouns import Case, Limits, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.errors import IsolationUnavailable
from sandbox.jail.jail import Jail, find_packages
from sandbox.judging.judge import Judge

LIMITS = Limits(cpu_s=5, wall_s=30)
CRUNCH = {
    "crunch/__init__.py": "import needed\nfrom pathlib import Path\nTABLE = Path(__file__).parent / 'table.txt'\n",
    "crunch/later.py": "from crunch import TABLE\ndef table(): return TABLE.read_text().strip()\n",
    "crunch/table.txt": "42\n",
    "crunch.libs/beside.txt": "",
    "needed.py": "",
    "secret/__init__.py": "",
}
ASK = """
import crunch, os
from crunch import later, _bisect
def answer():
    try:
        open(os.path.join(crunch.__path__[0], "table.txt"), "a")
    except OSError:
        pass
    else:
        return "written"
    try:
        import secret
    except ImportError:
        return later.table() + str(_bisect.bisect_right([1, 2, 3], 2))
    return "secret"
"""
PROBLEMS = [
    Problem("stdio", "stdio", (Case("", "422"),) * 2, limits=LIMITS),
    Problem("function", "function", (Case("[]", '"422"'),) * 2, "answer", limits=LIMITS),
    Problem("assert", "assert", (Case("assert answer() == '422'"),) * 2, limits=LIMITS),
]


@pytest.fixture(scope="module", params=["/tmp", "/dev/shm"])
def crunch(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A package in a virtual environment there, with what it needs beside it: as of a checkout in the temp folder."""
    with tempfile.TemporaryDirectory(dir=request.param) as directory:
        site = Path(directory, "a checkout", ".venv/lib/python/site-packages")
        for name, text in CRUNCH.items():
            path = site / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        if extension := getattr(_bisect, "__file__", None):
            shutil.copy(extension, site / "crunch")
        else:  # an interpreter that has it built in
            (site / "crunch/_bisect.py").write_text("from bisect import bisect_right")
        yield site


@pytest.fixture(scope="module", params=["A", "B"])
def judge(request: pytest.FixtureRequest, crunch: Path, builder: Builder) -> Iterator[Judge]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(crunch)
        packages = find_packages(("crunch",))
    try:
        jail = Jail(request.param, packages=packages)
    except IsolationUnavailable as error:
        pytest.skip(str(error))
    with jail:
        yield Judge(jail, builder)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.kind)
def test_a_package_of_an_environment_in_a_hidden_place_is_there_whole(judge: Judge, problem: Problem) -> None:
    done = judge.judge(problem, Program(ASK + ("print(answer())" if problem.kind == "stdio" else "")))
    assert done.verdict is Verdict.AC, done.cases


def test_its_environment_and_the_place_itself_stay_hidden(judge: Judge, crunch: Path) -> None:
    source = f"""
import os
found = []
for top in ({str(crunch)!r}, {str(crunch.parents[4])!r}, "/old", "/box/packages"):
    try:
        found += os.listdir(top)
    except OSError:
        pass
print(*sorted(found))
try:
    open("/tmp/mine", "w").close()
    os.remove("/tmp/mine")
except OSError:
    print("no place to write")
"""
    seen = "crunch crunch.libs" if judge.jail.tier == "A" else "\nno place to write"
    done = judge.judge(Problem("p", "stdio", (Case("", seen or "-"),), compare="lines"), Program(source))
    assert done.verdict is Verdict.AC, done.cases


def test_a_package_in_a_hidden_place_is_imported_once_for_all_runs(judge: Judge) -> None:
    done = judge.judge(PROBLEMS[0], Program("import sys\nprint(422 if 'crunch' in sys.modules else 0)"))
    assert done.verdict is Verdict.AC, done.cases
