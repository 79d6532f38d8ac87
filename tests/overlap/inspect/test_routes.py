"""Tests of ``overlap view``: its answers, to whom it gives none, a run that grows, and the process around them."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import threading
import urllib.request
from array import array
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kept_rows import kept_row, write_rows
from served_view import served_view
from starlette.testclient import TestClient

from overlap import cli
from overlap.core.errors import ConfigError
from overlap.inspect import routes
from overlap.inspect.page_data import HERE, SCRIPTS
from overlap.inspect.routes import HEADERS, RunLibrary, run_app
from overlap.inspect.run_data import open_samples

HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"


def client_of(run: Path) -> TestClient:
    return TestClient(run_app(RunLibrary(open_samples(str(run)))), base_url="http://127.0.0.1:8710")


@pytest.fixture
def client(finished: Path) -> TestClient:
    return client_of(finished)


def test_the_page_is_served_whole_with_a_strict_policy(client: TestClient) -> None:
    found = client.get("/")
    assert found.headers.items() >= {key.lower(): value for key, value in HEADERS.items()}.items()
    assert "unsafe" not in HEADERS["Content-Security-Policy"]
    assert "connect-src 'self'" in HEADERS["Content-Security-Policy"]
    assert "{{" not in found.text


@pytest.mark.promise("pages")
def test_the_page_loads_nothing_from_elsewhere_and_makes_no_html_of_texts() -> None:
    assert {f"{name}.js" for name in SCRIPTS} | {"index.html", "page.css"} == {path.name for path in HERE.iterdir()}
    for path in HERE.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        forbidden = r"https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|@import|url\("
        assert not re.search(forbidden, text), path.name


@pytest.mark.promise("hostile-text")
@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:8710", "", "169.254.0.1", "evil.example:8710"]
)
@pytest.mark.parametrize("path", ["/", "/api/run", "/nowhere"])
def test_a_page_elsewhere_that_names_itself_as_this_host_gets_nothing(host: str, path: str, client: TestClient) -> None:
    assert client.get(path, headers={"host": host}).status_code == 400


@pytest.mark.parametrize(
    "path",
    ["/../routes.py", "/%2e%2e/routes.py", "//etc/passwd", "/routes.py", "/page.css", "/api", "/api/run/",
     "/api/sample", "/api/sample/1/x/1", "/api/sample/x/1/1", "/api/sample/3/9/99", f"/api/sample/1/{'9' * 5000}/1"],
)  # fmt: skip
def test_no_other_path_leads_anywhere(path: str, client: TestClient) -> None:
    assert client.get(path).status_code in (400, 404)


def test_the_run_is_sent_once_and_then_only_when_it_has_changed(client: TestClient) -> None:
    assert client.post("/api/run").status_code == 405
    facts = client.get("/api/run", headers={"host": "localhost:1"}).json()
    assert facts["steps"] == 6
    again = client.get("/api/run", params={"revision": facts["revision"]})
    assert again.json() == {"revision": facts["revision"]}


def test_a_sample_has_its_reason_difference_and_program_in_parts(tmp_path: Path) -> None:
    row = kept_row(program={"source": "def f():\n    return 'x'\n", "language": "python"})
    found = client_of(write_rows(tmp_path / "run", row)).get("/api/sample/3/17/2").json()
    assert found["why"] == "test 3 of 5: wrong answer: expected `7`, got `8`"
    assert found["failed_test"] == 2
    assert found["tests"][0]["diff"] == ["- 7", "+ 8"]
    parts = found["program"]["parts"]
    assert "".join(text for _, text in parts) == "def f():\n    return 'x'\n"
    assert {"k", "nf", "s"} <= {kind for kind, _ in parts}
    assert "token_ids" not in found


def test_hostile_texts_leave_as_json_that_no_browser_takes_for_a_page(tmp_path: Path) -> None:
    row = kept_row(prompt=HOSTILE, answer="\ud800\udcff\x00", prompt_id=HOSTILE, reward=float("nan"))
    client = client_of(write_rows(tmp_path / "run", row))
    for path in ("/api/sample/3/17/2", "/api/lists"):
        found = client.get(path)
        assert found.headers["content-type"] == "application/json"
        assert HOSTILE in str(found.json())
    assert client.get("/api/lists").json()["samples"]["columns"]["reward"] == [None]


def test_tokens_have_figures_and_without_a_tokenizer_a_line_says_so(tmp_path: Path) -> None:
    def packed(code: str, values: list[float]) -> str:
        return base64.b64encode(array(code, values).tobytes()).decode()

    row = kept_row(token_ids=packed("i", [5, 6]), logprobs=packed("f", [-1.0, -2.0]),
                   learner_logprobs=packed("f", [-1.5, -2.0]), mask=base64.b64encode(b"\1\0").decode())  # fmt: skip
    run = write_rows(tmp_path / "run", row, config=f"model: {{policy: {tmp_path}/none}}\n")
    found = client_of(run).get("/api/tokens/3/17/2").json()
    assert found["figures"] == {"gap": [0.5, None], "advantage": [-0.5, None], "logprob": [-1.0, None]}
    assert "none" in found["error"]
    assert found["texts"] == ["⟨5⟩", "⟨6⟩"]


def test_an_episode_is_a_tree_of_branches(tmp_path: Path) -> None:
    def ids(*values: int) -> str:
        return base64.b64encode(array("i", values).tobytes()).decode()

    fork = {"text": "left", "finish": "stop", "versions": [], "prompt_token_ids": ids(1, 2), "token_ids": ids(3, 4, 5)}
    row = kept_row(turns=2, branches=2, forks=[fork], prompt_token_ids=ids(1, 2), token_ids=ids(3, 9, 5), dialog="all")
    first, last = client_of(write_rows(tmp_path / "run", row)).get("/api/sample/3/17/2").json()["forks"]
    assert (first["parent"], first["depth"], first["tokens"]) == (None, 0, 3)
    assert (last["parent"], last["depth"], last["shared"]) == (1, 1, 3)


def test_a_file_that_cannot_be_read_is_named_on_the_page(tmp_path: Path) -> None:
    run = write_rows(tmp_path / "run")
    (run / "trajectories.jsonl").write_text("{]\n")
    assert "holds no sample" in client_of(run).get("/api/lists").json()["error"]


def library_of(folder: Path, *rows: dict[str, Any]) -> RunLibrary:
    return RunLibrary(open_samples(str(write_rows(folder, *rows))))


def column(library: RunLibrary, name: str) -> list[Any]:
    found = json.loads(library.lists())["samples"]["columns"][name]
    return found if isinstance(found, list) else [found["words"][at] for at in found["at"]]


@pytest.mark.parametrize(
    ("text", "samples"),
    [
        ("needle", [1]),
        ('say "hi"\n', [2]),
        ("größe", [3]),
        ("g17s0", [0]),
        ("boom", [0]),
        ("answer", []),  # the name of a field
        ("AAAA", []),  # numbers of tokens
        ("nowhere", []),
    ],
)
def test_a_text_is_found_where_a_person_would_see_it(text: str, samples: list[int], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    rows = kept_row(sample=0, token_ids="AAAA", test={"stderr": "boom"}), kept_row(sample=1, prompt="a needle")
    library = library_of(folder, *rows)
    with (folder / "trajectories.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(kept_row(sample=2, answer='say "hi"\n')) + "\n")
        file.write(json.dumps(kept_row(sample=3, prompt="größe"), ensure_ascii=False) + "\n")
    assert [sample for _, _, sample in library.places_with(text)] == samples


def test_what_is_written_meanwhile_is_there_at_the_next_request(tmp_path: Path) -> None:
    library = library_of(tmp_path / "run", kept_row(sample=0))
    assert column(library, "sample") == [0]
    before = library.revision()
    write_rows(tmp_path / "run", kept_row(sample=1))
    assert column(library, "sample") == [0, 1]
    assert library.revision() != before
    assert library.sample((3, 17, 1))["prompt"] == "Add two numbers.\n"


def test_a_run_that_went_back_is_read_anew(tmp_path: Path) -> None:
    library = library_of(tmp_path / "run", kept_row(sample=0), kept_row(sample=1, verdict="WA"))
    assert column(library, "sample") == [0, 1]
    path, revision = tmp_path / "run" / "trajectories.jsonl", library.revision()
    path.write_text(path.read_text().replace('"verdict": "WA"', '"verdict": "RE"'))  # as many bytes again
    os.utime(path, ns=(1, 1))
    assert library.revision() != revision
    assert column(library, "verdict") == ["RE", "RE"]
    path.write_text("")
    write_rows(tmp_path / "run", kept_row(sample=7))
    assert column(library, "sample") == [7]
    with pytest.raises(ConfigError, match="g17s1': is not among the kept samples"):
        library.sample((3, 17, 1))


def test_columns_come_back_as_they_were(tmp_path: Path) -> None:
    rows = [kept_row(sample=n, reward=reward, verdict=v) for n, (reward, v) in enumerate(((0.5, "WA"), (None, None)))]
    library = library_of(tmp_path / "run", *rows)
    assert column(library, "reward") == [0.5, None]
    assert column(library, "verdict") == ["WA", None]
    assert column(library, "kept_as") == [["worst"], ["worst"]]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_it_says_where_it_listens_answers_there_and_ends_with_a_signal_also_while_it_is_asked(
    number: int, code: int, finished: Path
) -> None:
    with served_view(finished) as (address, process):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{address}api/run", timeout=60) as answer:
            assert json.load(answer)["steps"] == 6
        with socket.create_connection(("127.0.0.1", int(address.strip("/").rpartition(":")[2]))) as asking:
            asking.sendall(b"GET /api/run HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert asking.recv(100).startswith(b"HTTP/1.1 200")
            asking.sendall(b"GET /api/li")
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (code, "", "overlap: interrupted\n")


@pytest.mark.parametrize(("display", "said"), [("", "no display here"), (":0", "")])
def test_the_page_is_opened_where_there_is_a_display(
    display: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    opened = threading.Event()
    monkeypatch.setattr("webbrowser.open", lambda address: opened.set())
    for name in ("WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DISPLAY", display)
    routes._open("http://127.0.0.1:1/")
    assert said in capsys.readouterr().out
    assert opened.wait(10 if display else 0) == bool(display)


def test_a_port_that_is_taken_is_one_line_with_the_way_out(finished: Path, capsys: pytest.CaptureFixture) -> None:
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        assert cli.main(["view", str(finished), "--port", port]) == 2
    assert f"--port={port}: cannot be had (Address already in use" in capsys.readouterr().err


def test_what_holds_no_samples_or_no_run_ends_the_command_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "notes.txt").write_text("hello\n")
    for name, said in (("notes.txt", "notes.txt': line 1 holds no sample"), ("", "is missing")):
        assert cli.main(["view", str(tmp_path / name), "--port", "0"]) == 2
        assert said in capsys.readouterr().err
