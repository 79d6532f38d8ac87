"""A working directory for commands: what stays between calls, what does not, and what a command cannot reach."""

from __future__ import annotations

import socket
from collections.abc import Callable

import psutil
import pytest
from pooling import living, until
from small_root import make_small_root

from sandbox.core.nouns import MIB, Limits
from sandbox.errors import IsolationUnavailable
from sandbox.jail.jail import TIERS
from sandbox.session.sessions import Sessions

LIMITS = Limits(cpu_s=5, wall_s=60, output_bytes=1 * MIB)
Started = Callable[[], list[psutil.Process]]


@pytest.mark.promise("sessions")
@pytest.mark.parametrize("tier", TIERS)
async def test_files_stay_between_calls_and_processes_do_not(tier, started: Started) -> None:
    async with Sessions(2, isolation=tier, limits=LIMITS) as sessions:
        work = sessions.open().workspace()
        assert started() == []
        first = await work.exec("mkdir d; echo one > d/a; X=1; sleep 900 & cat > in", stdin="said")
        assert (first.exit_code, first.stderr) == (0, "")
        assert not [process for process in started() if "sleep" in process.name()]
        await work.write("d/b.bin", b"\0\xff")
        await work.write("deep/er/c.txt", "two")
        second = await work.exec('cat d/a deep/er/c.txt in; echo "[$X]"; expr 6 \\* 7; exit 3')
        assert (second.stdout, second.exit_code) == ("one\ntwosaid[]\n42\n", 3)
        assert await work.read("d/b.bin") == b"\0\xff"
        await work.write("d/a", "new")
        assert (await work.read("d/a"), (await work.exec("cat d/a")).stdout) == (b"new", "new")


async def test_a_command_reads_bytes_and_shows_as_much_as_its_sessions_keep() -> None:
    async with Sessions(1, limits=LIMITS, shown_bytes=100_000) as sessions:
        work = sessions.open().workspace()
        assert (await work.exec("od -An -tx1", stdin=b"\0\xff")).stdout.split() == ["00", "ff"]
        assert len((await work.exec("head -c 90000 /dev/zero")).stdout) == 90_000


async def test_all_files_are_read_at_once_without_links_and_laid_out_anew_after_a_close() -> None:
    async with Sessions(1, limits=LIMITS) as sessions:
        session = sessions.open()
        work = session.workspace()
        await work.lay_out({"bin/run": b"#!/bin/sh\necho ran", "bin/text": b"#!/bin/sh"}, ["bin/run"])
        await work.exec("cp bin/run made; ln -s /etc/passwd link; ln -s bin also; chmod 000 bin")
        files, programs = await work.files()
        assert (set(files), programs) == ({"bin/run", "bin/text", "made"}, {"bin/run", "made"})
        await work.close()
        again = session.workspace(links={"/app": "bin"})
        assert (await again.exec("ls")).stdout == ""
        await again.lay_out(files, programs)
        assert (await again.exec("/app/run; ./made")).stdout == "ran\nran\n"


async def test_two_sessions_share_nothing() -> None:
    async with Sessions(2, limits=LIMITS) as sessions:
        one, other = (sessions.open().workspace() for _ in range(2))
        await one.write("secret", "x")
        assert (await other.exec("cat secret ../*/secret /tmp/secret; ls")).stdout == ""
        with pytest.raises(FileNotFoundError):
            await other.read("secret")


@pytest.mark.promise("sessions")
async def test_reading_follows_nothing_out_and_waits_for_nobody(tmp_path) -> None:
    (tmp_path / "secret").write_text("secret")
    async with Sessions(1, limits=LIMITS) as sessions:
        work = sessions.open().workspace()
        await work.exec(f"mkfifo pipe; mkdir d; ln -s {tmp_path}/secret link; truncate -s 2M long; ln -s loop loop")
        for path, number in (("pipe", "Invalid argument"), ("d", "Is a directory"), ("long", "File too large")):
            with pytest.raises(OSError, match=number):
                await work.read(path)
        for path in ("link", f"{tmp_path}/secret", "/etc/passwd", "loop", "nothing", "../../etc/shadow"):
            with pytest.raises(OSError, match=r"No such file|Permission denied|Too many levels"):
                await work.read(path)
        for path in ("/usr/bin/was-here", "/was-here", "d", "../x"):
            with pytest.raises(OSError, match=r"Permission denied|Read-only|Is a directory"):
                await work.write(path, "x")
        with pytest.raises(ValueError, match="must be the name of a file"):
            await work.read("")


async def test_a_command_has_no_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        async with Sessions(1, limits=LIMITS) as sessions:
            code = f"import socket; socket.create_connection(('127.0.0.1', {port}))"
            done = await sessions.open().workspace().exec(f'python3 -c "{code}"')
    assert done.exit_code == 1
    assert "Permission denied" in done.stderr


@pytest.mark.parametrize(
    ("command", "ended", "cause"),
    [
        ("sleep 900", "timed out", "wall limit"),
        ("python3 -c 'while True: pass'", "timed out", "wall limit"),
        ("head -c 9M /dev/zero", "killed", "output limit"),
        ("kill -9 $$", "killed", "signal SIGKILL"),
    ],
)
async def test_a_call_ends_at_its_limits_and_the_directory_stays(command: str, ended: str, cause: str) -> None:
    async with Sessions(1, limits=LIMITS) as sessions:
        work = sessions.open().workspace()
        await work.write("kept", "x")
        done = await work.exec(command, timeout_s=1.0)
        assert (done.exit_code, done.ended, done.cause) == (None, ended, cause)
        assert len(done.stdout) < 64 << 10
        assert await work.read("kept") == b"x"


@pytest.mark.parametrize("tier", TIERS)
async def test_the_directory_is_bounded_over_all_calls(tier) -> None:
    async with Sessions(1, isolation=tier, limits=LIMITS) as sessions:
        work = sessions.open().workspace(work_bytes=4 * MIB)
        for name in range(6):
            await work.exec(f"head -c 1M /dev/urandom > {name}; sync; sleep 0.2")
        sizes = [len(found) for name in range(6) if (found := await _content(work, str(name)))]
        assert sum(sizes) <= 5 * MIB


async def _content(work, path: str) -> bytes:
    try:
        return await work.read(path)
    except OSError:
        return b""


async def test_a_root_of_its_own_is_seen_in_the_place_of_the_machines_and_cannot_be_changed(tmp_path) -> None:
    root = tmp_path / "image"
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "motd").write_text("hello from the image")
    make_small_root(root, "sh", "cat", "ls")
    async with Sessions(1, isolation="A", limits=LIMITS) as sessions:
        work = sessions.open().workspace(root=str(root))
        done = await work.exec("cat /etc/motd; echo x > /etc/motd; echo kept > mine; ls /")
        assert done.stdout.startswith("hello from the image")
        assert set(done.stdout.split()[4:]) <= {"bin", "usr", "lib", "lib64", "etc", "box", "dev", "proc", "tmp"}
        assert await work.read("mine") == b"kept\n"
        assert (await work.exec("python3 -c 1")).exit_code == 127
    assert (root / "etc" / "motd").read_text() == "hello from the image"


async def test_a_root_is_refused_where_the_tier_has_none(tmp_path) -> None:
    async with Sessions(1, isolation="B", limits=LIMITS) as sessions:
        with pytest.raises(IsolationUnavailable, match="a root file system of its own needs namespaces"):
            await sessions.open().workspace(root=str(tmp_path)).exec("true")


async def test_a_killed_jail_is_a_failure_of_the_sandbox_and_the_next_call_begins_anew(started: Started) -> None:
    async with Sessions(1, limits=LIMITS) as sessions:
        work = sessions.open().workspace()
        await work.write("kept", "x")
        for process in started():
            if process.is_running():
                process.kill()
        await until(lambda: not living(started()))
        with pytest.raises(Exception, match=r"jail|zygote"):
            await work.exec("true")
        assert (await work.exec("ls")).stdout == ""
