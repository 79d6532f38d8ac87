"""``overlap cluster up | status | down`` as a person meets it, over a Ray that starts almost nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from places import ROOT, SUPPORT

from overlap import cli
from overlap.cluster import by_hand, own_addresses
from overlap.cluster.node_state import AUTH, read_node_state, single_command, state_folder, token_of, token_path
from overlap.cluster.nodes import code_digest
from overlap.errors import OverlapError
from overlap.process import alive, identify, process_tree

Command = Callable[..., tuple[int, str, str]]


class Double:
    """The folder by which the double of Ray is told what to do."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __call__(self, name: str, content: str = "") -> None:
        (self.place / name).write_text(content)

    def called(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.place / "called.json").read_text())
        return found


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Double]:
    for name in (*AUTH, *by_hand.HEALTH, "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    place = tmp_path / "double"
    place.mkdir()
    monkeypatch.setenv("RAY_DOUBLE", str(place))
    monkeypatch.setenv("PYTHONPATH", f"{SUPPORT / 'light_ray'}{os.pathsep}{ROOT}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(by_hand, "RAYLET_S", 0.5)
    monkeypatch.setattr(by_hand, "REST_S", 0.5)
    yield Double(place)
    by_hand.end_node()
    process_tree.kill_tree(process_tree.marked(f"RAY_DOUBLE={place}"), 5.0)


@pytest.fixture
def cluster(double: Double, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*words: str) -> tuple[int, str, str]:
        code = cli.main(["cluster", *words])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def own_address() -> str:
    """One that is no loopback, or a reason to skip."""
    ours = own_addresses()
    return ours[0] if ours else pytest.skip("this machine has no address but loopback")


def running(double: Double) -> list[int]:
    return [process.pid for process in process_tree.marked(f"RAY_DOUBLE={double.place}") if alive(process)]


def nothing_is_left(double: Double, tmp_path: Path) -> None:
    assert running(double) == []
    assert not list((tmp_path / "state").rglob("*"))
    assert not [path for path in map(Path, words_of(double, "--temp-dir")) if path.parent.exists()]


def words_of(double: Double, name: str) -> list[str]:
    if not (double.place / "called.json").exists():
        return []
    words = double.called()["words"]
    return [word.partition("=")[2] for word in words if word.partition("=")[0] == name]


def test_the_head_asks_for_a_token_that_only_its_owner_reads_and_has_one_address(cluster, double, port) -> None:
    code, said, err = cluster("up", "--loopback", f"--address=127.0.0.1:{port}", "--", "--num-gpus=2")
    assert (code, err) == (0, "")
    called = double.called()
    wanted = {"--head", "--node-ip-address=127.0.0.1", f"--port={port}", "--include-dashboard=false", "--num-gpus=2"}
    assert wanted <= set(called["words"])
    assert words_of(double, "--labels") == [f"{by_hand.LABEL}={code_digest()}"]
    environment, token = called["environment"], token_path().read_text()
    assert environment["RAY_AUTH_MODE"] == "token"
    assert environment["RAY_AUTH_TOKEN_PATH"] == str(token_path())
    assert token not in "".join(environment.values())
    assert token not in said
    assert float(environment["RAY_health_check_failure_threshold"]) > 40  # a short outage is not the end of a node
    assert len(token) == 64
    assert stat.S_IMODE(token_path().stat().st_mode) == 0o600
    assert stat.S_IMODE(state_folder().stat().st_mode) == 0o700
    assert f"cluster.address=127.0.0.1:{port}" in said
    assert token_of(f"127.0.0.1:{port}") == token_path()
    assert token_of(f"127.0.0.1:{port + 1}") is None


def test_the_line_for_further_machines_names_address_and_token(cluster, double, port) -> None:
    address = own_address()
    code, said, err = cluster("up", f"--address={address}:{port}")
    assert (code, err) == (0, "")
    assert f"overlap cluster up --join {address}:{port} --token-file cluster-token\n" in said
    assert f"scp {address}:{token_path()} cluster-token" in said


def test_what_a_killed_sandbox_has_left_goes_with_the_node(cluster, double, port, tmp_path, monkeypatch) -> None:
    removed = []
    monkeypatch.setattr("sandbox.kernel.remove_run_directory", removed.append, raising=False)  # its cgroup, too
    assert cluster("up", "--loopback", f"--address=127.0.0.1:{port}")[0] == 0
    scratch = Path(double.called()["environment"]["TMPDIR"])
    assert stat.S_IMODE(scratch.stat().st_mode) == stat.S_IMODE(scratch.parent.stat().st_mode) == 0o711
    assert stat.S_IMODE(Path(*words_of(double, "--temp-dir")).stat().st_mode) == 0o700
    (scratch / "overlap-sandbox-1-2-abc" / "deep").mkdir(parents=True)
    (scratch / "overlap-sandbox-1-2-abc").chmod(0)
    assert cluster("down")[0] == 0
    assert removed == [str(scratch / "overlap-sandbox-1-2-abc")]
    nothing_is_left(double, tmp_path)


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A raylet that somebody else has started."""
    program = "import signal; open('/proc/self/comm', 'w').write('raylet'); print(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", program], env={}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.parametrize("raylet", ["stubborn", "careless"])
def test_what_was_started_is_ended_with_its_children_and_nothing_else_is(
    raylet, cluster, double, port, stranger, tmp_path
) -> None:
    double(raylet)
    assert cluster("up", "--loopback", f"--address=127.0.0.1:{port}")[0] == 0
    worker = identify(int((double.place / "worker").read_text()))
    assert worker is not None
    assert len(running(double)) == 2
    code, said, err = cluster("down")
    assert (code, err) == (0, "")
    assert "has stopped" in said
    assert not alive(worker)
    nothing_is_left(double, tmp_path)
    assert stranger.poll() is None
    assert cluster("down")[:2] == (0, "no node was started here by `overlap cluster up`\n")


def test_a_second_node_is_refused_while_the_first_one_runs(cluster, port) -> None:
    assert cluster("up", "--loopback", f"--address=127.0.0.1:{port}")[0] == 0
    code, _, err = cluster("up", "--loopback")
    assert code == 2
    assert "`overlap cluster down` stops it" in err


def test_a_node_that_is_gone_without_a_word_is_no_obstacle(cluster, double, port) -> None:
    assert cluster("up", "--loopback", f"--address=127.0.0.1:{port}")[0] == 0
    former = read_node_state()
    assert former is not None
    process_tree.kill_tree(process_tree.marked(f"RAY_DOUBLE={double.place}"), 5.0)
    assert cluster("up", "--loopback", f"--address=127.0.0.1:{port}")[0] == 0
    state = read_node_state()
    assert state is not None
    assert state.mark != former.mark
    assert not Path(former.place).exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--address=192.0.2.77"], "is not an address of this machine"),
        (["--address=127.0.0.1"], "add --loopback"),
        (["--address=0.0.0.0"], "name one address"),
        (["--address=0.0.0.0", "--loopback"], "name one address"),
        (["--address=here"], "is not an IP address"),
        (["--address=10.0.0.1:many"], "use HOST:PORT"),
        (["--address=10.0.0.1:70000"], "use HOST:PORT"),
        (["--join=10.0.0.1"], "use HOST:PORT"),
        (["--join=127.0.0.1:1"], "nothing answers there"),
        (["--loopback", "--token-file=nowhere"], "cannot be read"),
        (["--loopback", "--token-file=open"], "others may read it: chmod 600"),
        (["--loopback", "--token-file=empty"], "is not a token"),
        (["--loopback", "--", "--include-dashboard=true"], "--include-dashboard is set by `overlap cluster up`"),
        (["--loopback", "--", "num-cpus=1"], "--name=value"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, message, cluster, double, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "open").write_text("a" * 64)
    (tmp_path / "open").chmod(0o644)
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "empty").chmod(0o600)
    code, said, err = cluster("up", *words)
    assert (code, said) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    nothing_is_left(double, tmp_path)


def test_a_port_that_is_taken_is_refused(cluster, double, tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code, _, err = cluster("up", "--loopback", f"--address=127.0.0.1:{port}")
    assert code == 2
    assert f"port {port} cannot be used here" in err
    nothing_is_left(double, tmp_path)


def test_what_ray_says_is_told_where_it_fails_and_nothing_is_left(cluster, double, port, tmp_path) -> None:
    double("fail", "the object store is too small")
    code, said, err = cluster("up", "--loopback", f"--address=127.0.0.1:{port}")
    assert (code, said) == (1, "")
    assert "the object store is too small" in err
    assert len(err.splitlines()) == 1
    nothing_is_left(double, tmp_path)


def test_a_start_that_does_not_end_has_a_deadline(cluster, double, port, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(by_hand, "START_S", 0.5)
    double("hang")
    code, _, err = cluster("up", "--loopback", f"--address=127.0.0.1:{port}")
    assert code == 1
    assert "did not end within 0.5 s" in err
    nothing_is_left(double, tmp_path)


def started(double: Double, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "overlap.cli", "cluster", *words]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_signal_while_it_starts_leaves_nothing(double, port, tmp_path) -> None:
    double("hang")
    with started(double, "up", "--loopback", f"--address=127.0.0.1:{port}") as up:
        while not (double.place / "hangs").exists():
            assert up.poll() is None
            time.sleep(0.02)
        up.send_signal(signal.SIGTERM)
        assert up.communicate(timeout=60)[1] == "overlap: interrupted\n"
        assert up.returncode == 143
    nothing_is_left(double, tmp_path)


def test_with_block_the_node_lives_until_a_signal_comes(double, port, tmp_path) -> None:
    with started(double, "up", "--block", "--loopback", f"--address=127.0.0.1:{port}") as up:
        assert up.stdout is not None
        assert up.stdout.readline().startswith("the head of a cluster runs at ")
        assert len(running(double)) >= 2
        up.send_signal(signal.SIGTERM)
        up.communicate(timeout=60)
        assert up.returncode == 143
    nothing_is_left(double, tmp_path)


def test_with_block_a_node_that_ends_by_itself_is_a_failure(double, port, tmp_path) -> None:
    with started(double, "up", "--block", "--loopback", f"--address=127.0.0.1:{port}") as up:
        assert up.stdout is not None
        up.stdout.readline()
        process_tree.kill_tree([int((double.place / "worker").read_text())], 5.0)
        process_tree.kill_tree([pid for pid in running(double) if pid != up.pid and b"raylet" in comm(pid)], 5.0)
        _, err = up.communicate(timeout=60)
        assert up.returncode == 1
        assert "the node has stopped by itself" in err
    nothing_is_left(double, tmp_path)


def comm(pid: int) -> bytes:
    return process_tree.read_proc(pid, "comm")


@pytest.fixture
def head() -> Iterator[str]:
    """Something listens there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept_all, args=(server,), daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def accept_all(server: socket.socket) -> None:
    while True:
        try:
            server.accept()[0].close()
        except OSError:
            return


@pytest.mark.parametrize("by", ["file", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"])
def test_a_further_machine_joins_with_the_token_of_the_head(by, cluster, double, head, tmp_path, monkeypatch) -> None:
    file, token = tmp_path / "token", "b" * 64
    file.write_text(token + "\n")
    file.chmod(0o600)
    if by != "file":
        monkeypatch.setenv(by, token if by == "RAY_AUTH_TOKEN" else str(file))
    code, said, err = cluster("up", f"--join={head}", *([f"--token-file={file}"] if by == "file" else []))
    assert (code, err) == (0, "")
    assert f"joined the cluster at {head}" in said
    called = double.called()
    assert {f"--address={head}", "--node-ip-address=127.0.0.1"} <= set(called["words"])
    assert "--head" not in called["words"]
    assert token not in called["environment"].values()
    assert token_path().read_text() == token
    assert token_of(head) == token_path()


def test_a_node_whose_raylet_has_gone_is_started_again_by_the_same_command_without_its_token(
    cluster, double, head, monkeypatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "b" * 64)
    assert cluster("up", f"--join={head}")[0] == 0
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    assert "a node runs here already" in cluster("up", f"--join={head}")[2]
    raylets = [pid for pid in running(double) if comm(pid) == b"raylet\n"]
    worker = identify(int((double.place / "worker").read_text()))
    process_tree.kill_tree(raylets, 5.0)
    double("called.json", "{}")
    code, said, err = cluster("up", f"--join={head}")
    assert (code, err) == (0, "")
    assert f"joined the cluster at {head}" in said
    assert worker is None or not alive(worker)
    assert token_path().read_text() == "b" * 64


def test_nobody_joins_a_cluster_that_lets_everybody_in(cluster, double, head, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "b" * 64)
    double("nodes.json", "[]")
    code, _, err = cluster("up", f"--join={head}")
    assert code == 2
    assert "lets everybody in, without a token" in err
    nothing_is_left(double, tmp_path)


def test_nobody_joins_without_a_token(cluster, double, head, tmp_path) -> None:
    code, _, err = cluster("up", f"--join={head}")
    assert code == 2
    assert "copy the token of the head" in err
    nothing_is_left(double, tmp_path)


def row(address: str, alive: bool = True, **more: Any) -> dict[str, Any]:
    found = {"NodeManagerAddress": address, "NodeID": "0123456789ab", "Alive": alive, "Resources": {"CPU": 4.0}}
    return found | {"Labels": {by_hand.LABEL: code_digest()}} | more


def test_the_status_has_a_row_for_each_node(cluster, double, head) -> None:
    other = row("10.0.0.2", Resources={"CPU": 8.0, "GPU": 2.0}, Labels={by_hand.LABEL: "other"})
    dead = row("10.0.0.3", False, Resources={}, Labels={}, DeathReasonMessage="health check failed")
    double("nodes.json", json.dumps([row("10.0.0.1"), other, dead]))
    code, said, err = cluster("status", head)
    assert (code, err) == (0, "")
    lines = said.splitlines()
    assert lines[0] == f"cluster at {head}: 2 nodes, 12 cores, 2 GPUs; {OPEN}"
    assert lines[2].split() == ["10.0.0.1-01234567", "alive", "4", "0", code_digest()]
    assert lines[3].split()[:4] == ["10.0.0.2-01234567", "alive", "8", "2"]
    assert "not the one here" in lines[3]
    assert lines[4].split()[:2] == ["10.0.0.3-01234567", "dead"]
    assert "health check failed" in lines[4]


OPEN = "requires NO token: anyone who can connect can run code on it"


def test_the_status_says_of_a_cluster_that_was_asked_without_a_token_whether_it_wants_one(
    cluster, double, head, tmp_path
) -> None:
    double("nodes.json", json.dumps([row("10.0.0.1")]))
    double("token", "c" * 64)
    code, _, err = cluster("status", head)
    assert code == 1
    assert "invalid token" in err
    file = tmp_path / "token"
    file.write_text("c" * 64)
    file.chmod(0o600)
    code, said, _ = cluster("status", head, f"--token-file={file}")
    assert code == 0
    assert said.splitlines()[0].endswith("; requires a token")
    file.write_text("d" * 64)
    assert cluster("status", head, f"--token-file={file}")[0] == 1


def test_the_status_of_the_own_cluster_needs_no_words(cluster, double, port) -> None:
    assert cluster("status")[0] == 2
    assert cluster("up", "--loopback", f"--address=127.0.0.1:{port}")[0] == 0
    double("token", token_path().read_text())
    double("nodes.json", json.dumps([row("127.0.0.1")]))
    code, said, err = cluster("status")
    assert (code, err) == (0, "")
    assert "requires a token" in said.splitlines()[0]


def test_one_command_at_a_time_is_at_work_on_a_machine(cluster, double) -> None:
    with single_command():
        code, _, err = cluster("down")
        assert code == 1
        assert "another `overlap cluster` command runs" in err
    with single_command(), pytest.raises(OverlapError), single_command():
        pass
