"""Files of a run: many, in directories, in and out."""

from __future__ import annotations

import pytest
from jailed_runs import shell
from tiers import jail_of

from sandbox.jail.jail import Jail

jail = jail_of("A", "B")


def test_more_files_than_descriptors_can_be_sent_go_in_with_their_directories(jail: Jail) -> None:
    files = tuple((f"a/b{index % 3}/{index}", f"{index} ".encode()) for index in range(300))
    done = jail.run(shell("cat a/b0/0 a/b2/299; find . -type f | wc -l", files=files))
    assert done.stdout.split() == [b"0", b"299", b"300"]


@pytest.mark.parametrize("code", [0, 42, 43])
def test_a_gathered_directory_comes_back_however_the_run_ends(jail: Jail, code: int) -> None:
    script = f"cat notes/old; echo more >> notes/old; echo 1 > notes/new; exit {code}"
    done = jail.run(shell(script, files=(("notes/old", b"so far\n"),), gather="notes"))
    assert done.exit_code == code
    assert done.stdout == b"so far\n"
    assert done.gathered == (("new", b"1\n"), ("old", b"so far\nmore\n"))
    assert jail.run(shell("ls")).stdout == b""


@pytest.mark.parametrize(
    "script",
    [
        "ln -s /etc/passwd notes/a; mkfifo notes/b; mkdir notes/c; ln -s /dev/zero notes/d",
        "rm -r notes",
        "rm -r notes; ln -s /etc notes",
        "rm -r notes; echo x > notes",
    ],
)
def test_only_regular_files_of_the_directory_itself_are_gathered(jail: Jail, script: str) -> None:
    assert jail.run(shell(script, gather="notes")).gathered == ()


def test_more_than_can_be_brought_back_is_told(jail: Jail) -> None:
    assert jail.run(shell("for i in $(seq 100); do echo > notes/$i; done", gather="notes")).gathered is None
    assert jail.run(shell("truncate -s 60M notes/a notes/b", gather="notes")).gathered is None
    assert jail.run(shell("echo > notes/a", gather="notes")).gathered == (("a", b"\n"),)
