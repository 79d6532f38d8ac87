"""Whatever a program leaves is removed, and who comes next finds a place as it was."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.core.nouns import Case, Limits, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.jail.jail import Jail
from sandbox.jail.run import JailedRun
from sandbox.judging.judge import Judge
from sandbox.kernel.clear import empty, remove_tree


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory in memory, where thousands are made and removed at once."""
    above = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    above.chmod(0o711)  # as root, tier B's programs are another user's
    yield above / "place"
    left = os.listdir(above)
    subprocess.run(["chmod", "-R", "u+rwx", above], check=True)
    subprocess.run(["rm", "-rf", above], check=True)
    assert left == []


def nest(place: Path, depth: int, mode: int = 0o700) -> None:
    """Directories in directories, each by a name of 200 letters, made as a program makes them."""
    here = os.open(place, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d" * 200, mode | 0o300, dir_fd=here)
        inner = os.open("d" * 200, os.O_PATH, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


@pytest.mark.promise("leftovers")
def test_what_is_deep_long_locked_or_odd_is_removed(place: Path) -> None:
    place.mkdir()
    for name in ("a", "b"):
        (place / name).mkdir()
        nest(place / name, 1500)
    (place / "locked" / "inner").mkdir(parents=True)
    (place / "locked" / "inner" / "file").touch()
    (place / "locked").chmod(0)
    (place / "link").symlink_to(place.parent)
    (place / "\udcff\n").touch()
    os.mkfifo(place / "pipe")
    empty(str(place))
    assert os.listdir(place) == []
    for _ in range(2):  # the second time there is nothing
        remove_tree(str(place))
        assert os.listdir(place.parent) == []


NESTS = """
import os
for k in range(1500):
    os.mkdir('d' * 100, 0o300)
    os.chdir('d' * 100)
os.umask(0o777)
os.mkdir('locked')
print('ok')
"""


def test_after_a_run_that_leaves_a_deep_tree_the_next_are_as_ever_and_nothing_stays(
    tiered_judge: Judge, place: Path
) -> None:
    problem = Problem("nests", "stdio", (Case("", "ok"),), limits=Limits(cpu_s=5, wall_s=30))
    honest = (
        "import os\nassert os.listdir('.') == ['main.py']\nos.makedirs('d' * 100)\n"
        "open('a', 'w').write('ok')\nprint('ok')\n"
    )
    place.mkdir(mode=0o711)
    with Jail(tiered_judge.jail.tier, run_dir=str(place)) as jail:  # type: ignore[arg-type]
        judge = Judge(jail, tiered_judge.builder)
        assert judge.judge(problem, Program(NESTS)).verdict is Verdict.AC
        assert [judge.judge(problem, Program(honest)).verdict for _ in range(5)] == [Verdict.AC] * 5
        assert judge.judge(problem, Program("import time\nprint('ok', flush=True)\n" + NESTS)).verdict is Verdict.WA
        directory = jail.directory
    assert not os.path.exists(directory)
    place.rmdir()


def test_a_jail_that_is_closed_in_the_middle_of_a_deep_tree_leaves_nothing(tiered_jail: Jail, place: Path) -> None:
    place.mkdir(mode=0o711)
    with Jail(tiered_jail.tier, run_dir=str(place)) as jail:  # type: ignore[arg-type]
        directory = jail.directory
        deep = "i=0; while [ $i -lt 1500 ]; do mkdir dddddddddd; cd dddddddddd; i=$((i+1)); done; echo x >&2; sleep 60"
        jail.start(JailedRun(Limits(cpu_s=20, wall_s=60), argv=("/bin/sh", "-c", deep)))
        inside = Path(directory) / "work" / "/".join(["dddddddddd"] * 300)
        while jail.tier == "B" and not inside.exists():
            pass
    assert not os.path.exists(directory)
    place.rmdir()


def test_a_link_in_the_place_of_a_directory_goes_and_what_it_leads_to_stays(place: Path) -> None:
    kept = place.with_name("kept")
    (kept / "deep").mkdir(parents=True)
    place.symlink_to(kept)
    with pytest.raises(OSError, match="cannot empty"):
        empty(str(place))
    remove_tree(str(place))
    assert not os.path.lexists(place)
    assert os.listdir(kept) == ["deep"]
    remove_tree(str(kept))
