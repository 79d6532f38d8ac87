"""The files of a run take no more than a work directory may hold, in tier B too, where no mount bounds it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tiers import jail_of

from sandbox.core.nouns import Case, Judgement, Limits, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.judging.judge import Judge
from sandbox.zygote.disk import Disk, files_max

MIB = 1 << 20
ENDLESS = "import time\n{}\ntime.sleep(60)\nprint('ok')\n"
FILLS = {
    "many files": "for k in range(8):\n    with open(str(k), 'wb') as f:\n        f.write(bytes(20 << 20))",
    "files without a name": (
        "import os\nkept = []\nfor k in range(8):\n    kept.append(open('f', 'wb'))\n    os.unlink('f')\n"
        "    kept[-1].write(bytes(20 << 20))\n    kept[-1].flush()"
    ),
    "files of a child that has ended": (
        "import os\nfor k in range(8):\n    if os.fork() == 0:\n        open(str(k), 'wb').write(bytes(20 << 20))\n"
        "        os._exit(0)\n    os.wait()"
    ),
    "a locked folder": (
        "import os\nos.mkdir('d')\nos.chdir('d')\nfor k in range(8):\n    open(str(k), 'wb').write(bytes(20 << 20))\n"
        "os.chmod('.', 0)"
    ),
}


tiered_jail = jail_of("B")


def judged(judge: Judge, source: str) -> Judgement:
    limits = Limits(cpu_s=10, wall_s=60, memory_bytes=1024 * MIB)
    return judge.judge(Problem("disk", "stdio", (Case("", "ok"),), limits=limits), Program(source))


@pytest.mark.promise("limits")
@pytest.mark.parametrize("how", FILLS)
def test_files_that_are_small_each_are_bounded_together(tiered_judge: Judge, how: str) -> None:
    done = judged(tiered_judge, ENDLESS.format(FILLS[how]))
    assert (done.verdict, done.cases[0].message) == (Verdict.OLE, "its files take more than the work directory holds")


def test_room_is_taken_by_writing_only(tiered_judge: Judge) -> None:
    source = """
import os
fd = os.open('f', os.O_CREAT | os.O_RDWR)
os.posix_fallocate(fd, 0, 1 << 20)
assert os.fstat(fd).st_size == 1 << 20
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print('ok' if libc.fallocate(fd, 0, ctypes.c_long(0), ctypes.c_long(1 << 24)) == -1 else 'taken')
"""
    assert judged(tiered_judge, source).verdict is Verdict.AC


def test_a_file_may_be_written_anew_as_often_as_one_likes(tiered_judge: Judge) -> None:
    source = "for _ in range(15):\n    with open('f', 'wb') as f:\n        f.write(bytes(10 << 20))\nprint('ok')\n"
    assert judged(tiered_judge, source).verdict is Verdict.AC


def test_what_others_write_is_not_counted(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    disk = Disk(str(work), MIB)
    nobodys_child = f"head -c {8 * MIB} /dev/zero > {tmp_path}/other &"
    subprocess.run(["sh", "-c", nobodys_child], capture_output=True, check=True)
    os.sync()
    assert not disk.exceeded([])
    (work / "own").write_bytes(os.urandom(2 * MIB))
    os.sync()
    assert disk.exceeded([])


def test_the_number_of_files_is_bounded_too(tmp_path: Path) -> None:
    disk = Disk(str(tmp_path), 100 * MIB)
    disk._inodes += 1 << 20  # what others free meanwhile is not ours
    for number in range(files_max(0)):
        (tmp_path / str(number)).touch()
    assert not disk.exceeded([])
    (tmp_path / "folder").mkdir()
    assert disk.exceeded([])
