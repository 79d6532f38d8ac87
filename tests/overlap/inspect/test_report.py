"""Tests of the report and the picture: of a whole, a torn and a hostile run; the report needs nothing else."""

from __future__ import annotations

import json
import re
import struct
import warnings
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from ill_runs import ILL
from made_run import made_run

import overlap
from overlap import cli
from overlap.core.errors import ConfigError
from overlap.inspect.compare import comparison_lines
from overlap.inspect.curves import write_picture
from overlap.inspect.run_data import RunData, load_run

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\x00\u202e]]>--><style>*{}</style>\ud800"


class Page(HTMLParser):
    """The elements of a page, and its data."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text = path.read_text("utf-8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(self.text)
        self.data: dict[str, Any] = json.loads(self.text.partition('id="data">')[2].partition("</script>")[0])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def page_of(*runs: Path, out: Path | None = None) -> Page:
    return Page(overlap.write_report(*runs, out=out))


@pytest.mark.promise("pages")
def test_the_page_of_a_run_has_all_parts_and_loads_nothing(tmp_path: Path) -> None:
    page = page_of(made_run(tmp_path / "run", steps=12, groups=4, samples=4))
    facts = page.data["facts"]
    assert facts["cards"][0][:2] == ["pass@1 before the run", facts["cards"][0][1]]
    assert [card[0] for card in facts["cards"]][-3:] == ["samples", "exposed reward", "policy"]
    assert all(facts[part] for part in ("charts", "heldout", "settings", "machine"))
    assert page.data["texts"]
    assert 6 <= len(facts["charts"]["first"]) <= 12
    assert facts["charts"]["more"]
    assert [dict(a).get("type") for t, a in page.tags if t == "script"] == ["application/json", None]
    loaded = [v for _, attrs in page.tags for name, v in attrs.items() if name in ("src", "href") and v]
    assert [v for v in loaded if not v.startswith(("#", "data:"))] == []
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy") or ""
    assert policy.startswith("default-src 'none'; ")
    assert "connect-src" not in policy
    assert not re.search(r"https?://(?!www.w3.org/2000/svg)", page.text)


@pytest.mark.promise("hostile-text")
def test_what_a_policy_writes_is_data_and_no_part_of_the_page(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", steps=2, kept="all")
    rows = [json.loads(line) for line in (folder / "trajectories.jsonl").read_text("utf-8").splitlines()]
    for row in rows:
        row |= {"answer": HOSTILE, "prompt_id": HOSTILE, "failure": HOSTILE, "verdict": HOSTILE, "kept_as": [HOSTILE]}
        row["program"] = {"source": HOSTILE, "language": HOSTILE}
        row["tests"] = [{"index": 0, "verdict": HOSTILE, "message": HOSTILE, "input": HOSTILE, "got": HOSTILE}]
    (folder / "trajectories.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    groups = [json.loads(line) for line in (folder / "groups.jsonl").read_text().splitlines()]
    lines = (json.dumps({**g, "prompt_id": g["prompt_id"] + HOSTILE}) + "\n" for g in groups)
    (folder / "groups.jsonl").write_text("".join(lines))
    page = page_of(folder)
    assert [tag for tag, _ in page.tags if tag in ("script", "img", "style")] == ["style", "script", "script"]
    assert [name for _, attrs in page.tags for name in attrs if name.startswith("on")] == []
    assert next(iter(page.data["texts"].values()))["answer"] == HOSTILE


def test_a_page_of_several_runs_compares_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = made_run(tmp_path / "a" / "run", steps=10, heldout=16, solved=(0.2, 0.9))
    two = made_run(
        tmp_path / "b" / "run", steps=10, heldout=16, solved=(0.2, 0.3), seed=1, overrides=("learn.lr=3e-6",)
    )
    assert cli.main(["report", str(one), str(two), "--out", str(tmp_path / "both.html")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("a/run  10 steps, mean reward 0.")
    assert "held-out pass@1 " in lines[0]
    assert "differs  learn.lr: 1e-06 | 3e-06" in lines
    assert lines[-2].startswith("b/run against a/run on held-out problems: -")
    assert lines[-2].endswith("worse (16 problems)")
    assert comparison_lines([load_run(two), load_run(one)])[-1].endswith("better (16 problems)")
    assert "no clear difference" in comparison_lines([load_run(one), load_run(one)])[-1]
    compared = Page(tmp_path / "both.html").data["compared"]
    assert compared["names"] == ["a/run", "b/run"]
    assert ["learn.lr", "1e-06", "3e-06"] in compared["differences"]
    assert [row[0] for row in compared["differences"] if row[0] in ("run.steps", "run.dir")] == []
    assert [paired["says"] for paired in compared["paired"]] == ["worse (16 problems)"]
    assert [len(axis["charts"]) for axis in compared["charts"]] == [5, 5]


@pytest.mark.parametrize("name", ["metrics.jsonl", "groups.jsonl", "trajectories.jsonl", "summary.json", "trace.json"])
def test_a_run_without_one_of_its_files_has_a_report(tmp_path: Path, name: str) -> None:
    folder = made_run(tmp_path / "run", steps=3)
    (folder / name).unlink()
    assert page_of(folder).data["facts"]["name"] == "run"


@pytest.mark.parametrize("value", [None, 0, -5.0, 3e38, -3e38, 1e-300])
def test_figures_of_any_size_have_a_report(tmp_path: Path, value: float | None) -> None:
    folder = made_run(tmp_path / "run", steps=9)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    for row in rows[3:6]:
        row |= {name: value for name in row if name != "step"}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert not re.search(r"\bNaN\b|\bnan\b|\bInfinity\b", json.dumps(page_of(folder).data))


def test_a_long_runs_report_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlap.inspect.curves.POINTS", 25)
    page = page_of(made_run(tmp_path / "run", steps=60, groups=8, samples=8, padding=40_000, eval_samples=0))
    assert len(page.text.encode()) < 5_000_000
    assert "characters left out" in page.text
    assert page.data["facts"]["charts"]["xs"] == [3 * k + 2 for k in range(20)]


def test_only_a_report_is_written_over(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", steps=1)
    overlap.write_report(folder)
    assert overlap.write_report(folder) == folder / "report.html"
    (tmp_path / "mine.html").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        overlap.write_report(folder, out=tmp_path / "mine.html")
    assert (tmp_path / "mine.html").read_text() == "mine"
    with pytest.raises(ConfigError, match="name one run directory or more"):
        overlap.write_report()


def test_the_command_names_the_report_and_its_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ILL["clipping"].make(tmp_path / "run")
    assert cli.main(["report", str(folder), "--out", str(tmp_path / "x.html")]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("WARNING  ")
    assert last == f"{tmp_path / 'x.html'}: open it in a browser"
    (warning,) = Page(tmp_path / "x.html").data["facts"]["warnings"]
    assert warning["kind"] == "clipping"
    assert warning["way_out"].startswith("lower learn.lr or learn.updates_per_step")
    assert cli.main(["report", str(tmp_path / "none")]) == 2


@pytest.mark.promise("secrets")
def test_passwords_of_a_configuration_are_left_out(tmp_path: Path) -> None:
    override = "episode.command=agent --api-key hunter2 --url here"
    text = page_of(made_run(tmp_path / "run", steps=1, overrides=(override,))).text
    assert "hunter2" not in text
    assert "agent --api-key *** --url here" in text


@pytest.mark.parametrize("steps", [1, 2, 40])
def test_a_picture_of_any_number_of_steps_is_a_whole_png_without_a_warning(tmp_path: Path, steps: int) -> None:
    run, path = load_run(made_run(tmp_path / "run", steps=steps, staleness=1)), tmp_path / "picture.png"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_picture(run, path, title="a run")
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">I", data[16:20]) == (1968,)
    assert data[-8:-4] == b"IEND"


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), 0.0, -3e38])
def test_figures_that_are_no_numbers_are_gaps(tmp_path: Path, value: float | None) -> None:
    (tmp_path / "config.yaml").write_text("run: {}\n")
    rows = [{"step": k, "reward/mean": value, "learn/entropy": value, "time/generate_s": value} for k in range(1, 9)]
    write_picture(RunData(tmp_path, rows), tmp_path / "picture.png")
