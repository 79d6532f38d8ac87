"""Tests of what ``overlap view`` answers, and of whom it answers nothing."""

from __future__ import annotations

import base64
import re
from array import array
from pathlib import Path

import pytest
from kept_rows import kept_row, write_rows
from starlette.testclient import TestClient

from overlap.inspect.page import HERE, SCRIPTS
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


@pytest.mark.parametrize("host", ["127.0.0.1:8710", "localhost:1", "localhost"])
def test_the_loopback_has_two_names(host: str, client: TestClient) -> None:
    assert client.get("/api/run", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/../routes.py", "/%2e%2e/routes.py", "//etc/passwd", "/routes.py", "/page.css", "/api", "/api/run/",
     "/api/sample", "/api/sample/1/x/1", "/api/sample/x/1/1", "/api/sample/3/9/99", f"/api/sample/1/{'9' * 5000}/1"],
)  # fmt: skip
def test_no_other_path_leads_anywhere(path: str, client: TestClient) -> None:
    assert client.get(path).status_code in (400, 404)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(method: str, client: TestClient) -> None:
    assert client.request(method, "/api/run").status_code == 405


def test_the_run_is_sent_once_and_then_only_when_it_has_changed(client: TestClient) -> None:
    facts = client.get("/api/run").json()
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
    row = kept_row(turns=2, branches=2, forks=[fork], prompt_token_ids=ids(1, 2), token_ids=ids(3, 9), dialog="all")
    first, last = client_of(write_rows(tmp_path / "run", row)).get("/api/sample/3/17/2").json()["forks"]
    assert (first["parent"], first["depth"], first["tokens"]) == (None, 0, 3)
    assert (last["parent"], last["depth"], last["shared"]) == (1, 1, 3)


def test_a_file_that_cannot_be_read_is_named_on_the_page(tmp_path: Path) -> None:
    run = write_rows(tmp_path / "run")
    (run / "trajectories.jsonl").write_text("{]\n")
    assert "holds no sample" in client_of(run).get("/api/lists").json()["error"]
