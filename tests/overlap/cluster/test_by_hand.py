"""``overlap cluster up | status | down`` as a person meets it, over a Ray that starts almost nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import socketserver
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from places import ROOT, SUPPORT

from overlap import cli
from overlap.cluster import by_hand
from overlap.cluster.access import AUTH, HEALTH, token_of, token_path
from overlap.cluster.by_hand import LABEL
from overlap.cluster.nodes import code_digest
from overlap.process import process_tree
from overlap.process.process_tree import alive, identify

Command = Callable[..., tuple[int, str, str]]
TOKEN = "b" * 64


class Double:
    """The folder by which the double of Ray is told what to do."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir()
        self("token", TOKEN)
        self("nodes.json", "[]")

    def __call__(self, name: str, content: str = "") -> None:
        (self.place / name).write_text(content)

    @property
    def environment(self) -> dict[str, str]:
        found: dict[str, str] = json.loads((self.place / "called.json").read_text())["environment"]
        return found

    def words(self, name: str) -> list[str]:
        """What Ray was told by that name; nothing where it was not called."""
        file = self.place / "called.json"
        said = [word.partition("=") for word in json.loads(file.read_text())["words"]] if file.exists() else []
        return [value for known, _, value in said if known == name]

    def running(self, name: str = "") -> list[int]:
        found = [process.pid for process in process_tree.marked(f"RAY_DOUBLE={self.place}") if alive(process)]
        return [pid for pid in found if name.encode() in process_tree.read_proc(pid, "comm")]

    def fails(self, found: tuple[int, str, str], code: int, message: str) -> None:
        assert found[:2] == (code, "")
        assert message in found[2]
        assert len(found[2].splitlines()) == 1
        self.nothing_is_left()

    def nothing_is_left(self) -> None:
        assert self.running() == []
        assert not list((self.place.parent / "state").rglob("*"))
        assert not [path for path in self.words("--temp-dir") if Path(path).parent.exists()]


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Double]:
    for name in (*AUTH, *HEALTH, "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    made = Double(tmp_path / "double")
    monkeypatch.setenv("RAY_DOUBLE", str(made.place))
    monkeypatch.setenv("PYTHONPATH", f"{SUPPORT / 'light_ray'}{os.pathsep}{ROOT}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    for name, content in {"mine": TOKEN, "other": "c" * 64}.items():
        Path(name).write_text(content)
    yield made
    cli.main(["cluster", "down"])
    process_tree.kill_tree(process_tree.marked(f"RAY_DOUBLE={made.place}"), 5.0)


@pytest.fixture
def cluster(double: Double, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*words: str) -> tuple[int, str, str]:
        code = cli.main(["cluster", *words])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def here() -> list[str]:
    """What starts a head at a port of its own."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return ["up", "--loopback", f"--address=127.0.0.1:{server.getsockname()[1]}"]


@pytest.fixture
def head() -> Iterator[str]:
    """Something speaks HTTP/2 there."""

    class Speaks(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"\0\0\0\4\0\0\0\0\0")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Speaks) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.promise("cluster-secrets")
def test_the_head_asks_for_a_token_that_only_its_owner_reads_and_has_one_address(cluster, double, here) -> None:
    address = here[-1].partition("=")[2]
    assert cluster("status")[0] == 2
    code, said, err = cluster(*here, "--", "--num-gpus=2")
    assert (code, err) == (0, "")
    wanted = {"--node-ip-address": "127.0.0.1", "--include-dashboard": "false", "--num-gpus": "2", "--head": ""}
    wanted |= {"--port": address.partition(":")[2], "--labels": f"{LABEL}={code_digest()}"}
    assert {name: double.words(name) for name in wanted} == {name: [value] for name, value in wanted.items()}
    environment, token = double.environment, token_path().read_text()
    assert (environment["RAY_AUTH_MODE"], environment["RAY_AUTH_TOKEN_PATH"]) == ("token", str(token_path()))
    assert token not in "".join(environment.values()) + said
    assert float(environment["RAY_health_check_failure_threshold"]) > 40  # a short outage is not the end of a node
    assert len(token) == 64
    modes = {token_path(): 0o600, token_path().parent: 0o700, Path(*double.words("--temp-dir")): 0o700}
    modes |= dict.fromkeys([Path(environment["TMPDIR"]), Path(environment["TMPDIR"]).parent], 0o711)
    assert {path: stat.S_IMODE(path.stat().st_mode) for path in modes} == modes
    assert f"cluster.address={address}" in said
    assert (token_of(address), token_of("127.0.0.1:1")) == (token_path(), None)
    double("token", token)
    assert "requires a token" in cluster("status")[1].splitlines()[0]  # of the own cluster, without its address


@pytest.mark.promise("cluster-up")
@pytest.mark.parametrize("raylet", ["stubborn", "careless"])
def test_what_was_started_is_ended_with_its_children_and_what_they_left_and_nothing_else_is(
    raylet, cluster, double, here, monkeypatch
) -> None:
    removed: list[str] = []
    monkeypatch.setattr(by_hand, "remove_run_directory", removed.append)  # with its cgroup
    double(raylet)
    assert cluster(*here)[0] == 0
    left = Path(double.environment["TMPDIR"]) / "ovl-1-2-3-abc"
    (left / "deep").mkdir(parents=True)
    left.chmod(0)
    worker = identify(int((double.place / "worker").read_text()))
    assert worker is not None
    program = "import signal; open('/proc/self/comm', 'w').write('raylet'); print(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", program], env={}, stdout=subprocess.PIPE) as stranger:
        assert stranger.stdout is not None
        stranger.stdout.readline()
        code, said, err = cluster("down")
        assert (code, err) == (0, "")
        assert "has stopped" in said
        assert not alive(worker)
        assert stranger.poll() is None
        stranger.kill()
    assert removed == [str(left)]
    double.nothing_is_left()
    assert cluster("down")[:2] == (0, "no node was started here by `overlap cluster up`\n")


@pytest.mark.parametrize("kind", ["head", "node"])
def test_a_node_that_has_gone_is_started_again_by_the_same_command_without_its_token(
    kind, cluster, double, here, head
) -> None:
    words = here if kind == "head" else ["up", f"--join={head}"]
    assert cluster(*words, "--token-file=mine")[0] == 0
    assert "a node runs here already" in cluster(*words)[2]
    former = Path(*double.words("--temp-dir")).parent
    worker = identify(int((double.place / "worker").read_text()))
    process_tree.kill_tree(double.running("raylet"), 5.0)
    code, _, err = cluster(*words)
    assert (code, err) == (0, "")
    assert worker is None or not alive(worker)
    assert token_path().read_text() == TOKEN
    assert not former.exists()


@pytest.mark.promise("cluster-up")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--address=192.0.2.77"], "name the one that others reach"),
        (["--address=127.0.0.1"], "add --loopback"),
        (["--address=0.0.0.0", "--loopback"], "name the one that others reach"),
        (["--address=10.0.0.1:70000"], "use HOST:PORT"),
        (["--loopback", "--address=127.0.0.1:PORT"], "cannot be used here (Address already in use): name another"),
        (["--join=10.0.0.1"], "use HOST:PORT"),
        (["--join=127.0.0.1:1"], "nothing answers there"),
        (["--join=127.0.0.1:PORT"], "requires a token"),
        (["--join=127.0.0.1:PORT", "--token-file=mine"], "lets everybody in, without a token"),
        (["--join=127.0.0.1:PORT", "--token-file=other"], "requires another token"),
        (["--loopback", "--token-file=nowhere"], "cannot be read"),
        (["--loopback", "--", "--include-dashboard=true"], "is set by `overlap cluster up`"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, message, cluster, double, head) -> None:
    if "lets everybody in" in message:
        (double.place / "token").unlink()
    double.fails(cluster("up", *(word.replace("127.0.0.1:PORT", head) for word in words)), 2, message)


@pytest.mark.parametrize(
    ("name", "content", "code", "message"),
    [
        ("fail", "1 the object store is too small", 1, "the object store is too small"),
        ("fail", "2 Error: No such option: --num-ducks", 2, "No such option: --num-ducks"),
        ("hang", "", 1, "did not end within 3 s"),
    ],
)
def test_what_ray_says_is_told_where_it_fails_and_nothing_is_left(
    name, content, code, message, cluster, double, here, monkeypatch
) -> None:
    monkeypatch.setattr(by_hand, "START_S", 3.0 if name == "hang" else 60.0)
    double(name, content)
    double.fails(cluster(*here), code, message)


@pytest.fixture
def started(double: Double) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """The command in a process of its own."""
    pipe = subprocess.PIPE
    yield lambda *words: subprocess.Popen(
        [sys.executable, "-m", "overlap.cli", "cluster", *words], text=True, stdout=pipe, stderr=pipe
    )
    double.nothing_is_left()


@pytest.mark.parametrize(
    ("number", "code", "told"), [(signal.SIGTERM, 143, "overlap: interrupted\n"), (signal.SIGKILL, -9, "")]
)
def test_a_signal_while_it_starts_leaves_nothing_that_down_does_not_end(
    number, code, told, started, cluster, double, here
) -> None:
    double("hang")
    with started(*here) as up:
        while not (double.place / "hangs").exists():
            assert up.poll() is None
            time.sleep(0.02)
        up.send_signal(number)
        assert up.communicate(timeout=60)[1] == told
        assert up.returncode == code
    assert bool(double.running()) is (number == signal.SIGKILL)
    assert cluster("down")[0] == 0


@pytest.mark.parametrize(("by", "code", "message"), [("signal", 143, ""), ("itself", 1, "has stopped by itself")])
def test_with_block_the_node_and_the_command_end_together(by, code, message, started, double, here) -> None:
    with started(*here, "--block") as up:
        assert up.stdout.readline().startswith("the head of a cluster runs at ")
        if by == "signal":
            up.send_signal(signal.SIGTERM)
        else:
            process_tree.kill_tree(double.running("raylet"), 5.0)
        assert message in up.communicate(timeout=60)[1]
        assert up.returncode == code


@pytest.mark.promise("cluster-up")
@pytest.mark.parametrize("by", ["file", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"])
def test_a_further_machine_joins_with_the_token_of_the_head(by, cluster, double, head, monkeypatch) -> None:
    if by != "file":
        monkeypatch.setenv(by, TOKEN if by == "RAY_AUTH_TOKEN" else "mine")
    code, said, err = cluster("up", f"--join={head}", *(["--token-file=mine"] if by == "file" else []))
    assert (code, err) == (0, "")
    assert f"joined the cluster at {head}" in said
    assert (double.words("--address"), double.words("--head")) == ([head], [])
    assert TOKEN not in double.environment.values()
    assert token_path().read_text() == TOKEN
    assert token_of(head) == token_path()
