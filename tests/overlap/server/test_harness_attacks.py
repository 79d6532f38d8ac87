"""Agent programs that break what they were given: their directory, their streams, what they leave to be read."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
from agent_runs import AGENT, Reading, rolled

from overlap.server import harness


@pytest.mark.parametrize(
    ("command", "read"),
    [
        ("mkfifo pipe; echo 1 > file", "file=1"),
        ("ln -s /dev/zero answer.txt; ln -s pipe two; mkfifo pipe", ""),
        ("ln -s /etc/hostname out; echo 1 > file; ln -s file within", "file=1 within=1"),
        ("truncate -s 1T huge; echo 1 > file; chmod 0 file .", "file=1"),
        ("D=$PWD; cd /; rm -rf $D", ""),
        ("D=$PWD; cd /; rm -rf $D; echo file > $D", ""),
    ],
)
def test_what_a_program_leaves_can_be_read_without_an_end_of_its_own(tmp_path, command: str, read: str) -> None:
    assert rolled(tmp_path, command, Reading()).text == read


def test_a_directory_that_became_a_link_is_left_alone_where_it_leads_to(tmp_path) -> None:
    scratch, precious = tmp_path / "scratch", tmp_path / "precious"
    scratch.mkdir()
    (precious / "deep").mkdir(parents=True)
    (precious / "deep" / "kept").write_text("kept")
    command = f"D=$PWD; cd /; rm -rf $D; ln -s {precious} $D"
    assert rolled(scratch, command, Reading()).text == ""
    assert (precious / "deep" / "kept").read_text() == "kept"


def test_a_socket_and_a_folder_in_a_loop_of_links_are_no_trap(tmp_path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "socket"))
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        (tmp_path / "deep").mkdir()
        (tmp_path / "deep" / "up").symlink_to("..")
        (tmp_path / "deep" / "own").symlink_to("../file")
        (tmp_path / "file").write_text("1")
        harness._clean_workdir(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["deep", "file"]
    assert os.listdir(tmp_path / "deep") == ["own"]


def test_signals_that_an_interpreter_ignores_are_not_ignored_below_it(tmp_path) -> None:
    found: Any = rolled(tmp_path, f"{AGENT} ends; grep SigIgn /proc/self/status > answer.txt").text
    ignored = int(found.split()[1], 16)
    assert not ignored & (1 << 12 | 1 << 24), "SIGPIPE and SIGXFSZ"
