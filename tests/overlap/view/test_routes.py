"""Tests of what ``overlap view`` answers, and of whom it answers nothing."""

from __future__ import annotations

import base64
import re
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kept_rows import kept_row, write_rows
from starlette.testclient import TestClient

from overlap.view.library import SampleLibrary
from overlap.view.routes import HEADERS, MOST, PAGE, samples_app
from overlap.view.source import open_samples

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def _client(run: Path) -> TestClient:
    return TestClient(samples_app(SampleLibrary(open_samples(str(run)))), base_url="http://127.0.0.1:8710")


@pytest.fixture
def ask(finished: Path) -> Iterator[Callable[..., Any]]:
    with _client(finished) as client:

        def answer(path: str, code: int = 200) -> Any:
            found = client.get(path)
            assert found.status_code == code, found.text
            return found.json()

        yield answer


def test_the_page_and_all_its_files_are_served_with_a_strict_policy(finished: Path) -> None:
    with _client(finished) as client:
        for name in ("", *(path.name for path in PAGE.iterdir() if path.suffix != ".py")):
            found = client.get(f"/{name}")
            assert found.status_code == 200, name
            assert found.headers.items() >= {key.lower(): value for key, value in HEADERS.items()}.items()
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


@pytest.mark.promise("pages")
def test_the_page_loads_nothing_from_elsewhere_and_makes_no_html_of_texts() -> None:
    for path in PAGE.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text), (
            path.name
        )
        for name in re.findall(r'(?:from "\./|src="|href="(?!#))([^"]+)', text):
            assert (PAGE / name).is_file(), f"{path.name} names {name}"


@pytest.mark.promise("hostile-text")
@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:8710", "", "169.254.0.1", "evil.example:8710"]
)
@pytest.mark.parametrize("path", ["/", "/api/run", "/app.js", "/nowhere"])
def test_a_page_elsewhere_that_names_itself_as_this_host_gets_nothing(host: str, path: str, finished: Path) -> None:
    with _client(finished) as client:
        assert client.get(path, headers={"host": host}).status_code == 400


@pytest.mark.parametrize("host", ["127.0.0.1:8710", "localhost:1", "localhost"])
def test_the_loopback_has_two_names(host: str, finished: Path) -> None:
    with _client(finished) as client:
        assert client.get("/api/run", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/../routes.py", "/%2e%2e/routes.py", "/page/../../routes.py", "//etc/passwd", "/routes.py", "/api", "/api/sample",
     "/api/sample/1/x/1", "/api/sample/x/1/1", "/app.js/"],
)  # fmt: skip
def test_no_other_path_leads_anywhere(path: str, finished: Path) -> None:
    with _client(finished) as client:
        assert client.get(path).status_code in (400, 404)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(method: str, finished: Path) -> None:
    with _client(finished) as client:
        assert client.request(method, "/api/run").status_code == 405


def test_the_run_is_told_once_and_then_only_when_it_changes(ask: Callable[..., Any]) -> None:
    facts = ask("/api/run")
    assert facts["last_step"] == 6
    assert ask(f"/api/run?revision={facts['revision']}") == {"revision": facts["revision"], "live": False}


def test_samples_come_in_pages(ask: Callable[..., Any]) -> None:
    everything = ask("/api/samples?limit=500")
    assert everything["total"] == len(everything["rows"]) > 20
    part = ask("/api/samples?offset=7&limit=3")
    assert part["rows"] == everything["rows"][7:10]
    assert len(ask(f"/api/samples?limit={MOST * 10}")["rows"]) <= MOST
    assert ask("/api/samples?verdict=AC&split=heldout")["rows"][0]["verdict"] == "AC"
    assert ask("/api/samples?q=nowhere-at-all")["rows"] == []


@pytest.mark.parametrize(
    "query", ["step=x", "offset=1e9", "limit=many", "sort=colour", "step=" + "9" * 400, "group=1.5"]
)
def test_a_query_that_makes_no_sense_is_told_so(query: str, ask: Callable[..., Any]) -> None:
    assert "error" in ask(f"/api/samples?{query}", 400)


@pytest.mark.parametrize("number", ["9" * 5000, "x", "1.5"])
def test_a_place_that_is_no_number_is_told_so(number: str, ask: Callable[..., Any]) -> None:
    for place in (f"sample/{number}/1/0", f"sample/1/1/{number}", f"tokens/1/{number}/0", f"group/{number}/1"):
        assert "no whole number" in ask(f"/api/{place}", 400)["error"]


def test_groups_and_problems_are_listed_and_opened(ask: Callable[..., Any]) -> None:
    groups = ask("/api/groups?limit=3&only=")
    assert groups["total"] == 24 + 4 * 6
    assert ask("/api/groups?dropped=1")["total"] == sum(
        bool(g["dropped"]) for g in ask("/api/groups?limit=500")["rows"]
    )
    group = ask("/api/group/0/-1")
    assert group["row"]["prompt_id"] == "heldout-0"
    assert all(sample["why"] for sample in group["samples"])
    problem = ask("/api/problem?id=heldout-0")
    assert [row["step"] for row in problem["groups"]] == [0, 2, 4, 6]
    assert ask("/api/problems?split=train&q=problems-1&limit=1")["total"] == 3
    for path in ("/api/group/99/1", "/api/problem?id=none", "/api/sample/3/9/99"):
        assert "error" in ask(path, 404)


def test_a_sample_has_its_reason_difference_and_program_in_parts(tmp_path: Path) -> None:
    row = kept_row(program={"source": "def f():\n    return 'x'\n", "language": "python"})
    with _client(write_rows(tmp_path / "run", row)) as client:
        found = client.get("/api/sample/3/17/2").json()
    assert found["why"] == "test 3 of 5: wrong answer: expected `7`, got `8`"
    assert found["failed_test"] == 2
    assert found["tests"][0]["diff"] == ["- 7", "+ 8"]
    parts = found["program"]["parts"]
    assert "".join(text for _, text in parts) == "def f():\n    return 'x'\n"
    assert {"k", "nf", "s"} <= {kind for kind, _ in parts}
    assert "token_ids" not in found


def test_hostile_texts_leave_as_json_that_no_browser_takes_for_a_page(tmp_path: Path) -> None:
    row = kept_row(prompt=HOSTILE, answer="\ud800\udcff\x00", prompt_id=HOSTILE, test={"got": HOSTILE})
    with _client(write_rows(tmp_path / "run", row)) as client:
        for path in ("/api/sample/3/17/2", "/api/samples", "/api/group/3/17", "/api/problems"):
            found = client.get(path)
            assert found.headers["content-type"] == "application/json"
            assert HOSTILE in str(found.json())


def test_a_figure_that_is_no_number_is_null(tmp_path: Path) -> None:
    with _client(write_rows(tmp_path / "run", kept_row(reward=float("nan")))) as client:
        assert client.get("/api/samples").json()["rows"][0]["reward"] is None


def test_tokens_have_figures_and_without_a_tokenizer_a_line_says_so(tmp_path: Path) -> None:
    def packed(code: str, values: list[float]) -> str:
        return base64.b64encode(array(code, values).tobytes()).decode()

    row = kept_row(token_ids=packed("i", [5, 6]), logprobs=packed("f", [-1.0, -2.0]),
                   learner_logprobs=packed("f", [-1.5, -2.0]), mask=base64.b64encode(b"\1\0").decode())  # fmt: skip
    run = write_rows(tmp_path / "run", row, config=f"model: {{policy: {tmp_path}/none}}\n")
    with _client(run) as client:
        found = client.get("/api/tokens/3/17/2").json()
    assert found["figures"] == {"gap": [0.5, None], "advantage": [-0.5, None], "logprob": [-1.0, None]}
    assert "none" in found["error"]
    assert found["texts"] == ["⟨5⟩", "⟨6⟩"]


def test_an_episode_is_a_tree_of_branches(tmp_path: Path) -> None:
    def ids(*values: int) -> str:
        return base64.b64encode(array("i", values).tobytes()).decode()

    fork = {"text": "left", "finish": "stop", "versions": [], "prompt_token_ids": ids(1, 2), "token_ids": ids(3, 4, 5)}
    row = kept_row(turns=2, branches=2, forks=[fork], prompt_token_ids=ids(1, 2), token_ids=ids(3, 9), dialog="all")
    with _client(write_rows(tmp_path / "run", row)) as client:
        first, last = client.get("/api/sample/3/17/2").json()["forks"]
    assert (first["parent"], first["depth"], first["tokens"]) == (None, 0, 3)
    assert (last["parent"], last["depth"], last["shared"]) == (1, 1, 3)


def test_a_file_that_cannot_be_read_is_told_to_the_page(tmp_path: Path) -> None:
    run = write_rows(tmp_path / "run")
    (run / "trajectories.jsonl").write_text("{]\n")
    with _client(run) as client:
        assert "holds no sample" in client.get("/api/samples").json()["error"]
