"""Tests of the report: the page of a whole, a torn, an old and a hostile run, and that it needs nothing else."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import former_run
import pytest
from ill_runs import ILL
from made_run import made_run

import overlap
from overlap import cli
from overlap.errors import ConfigError

HOSTILE = (
    "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\x00\u202e]]>--><style>*{display:none}</style>\ud800"
)
VOID = {"meta", "link", "br", "img", "circle", "path", "line", "polyline"}


class Page(HTMLParser):
    """The elements of a page, and whether each is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page_of(*runs: Path, out: Path | None = None) -> tuple[str, Page]:
    text = overlap.write_report(*runs, out=out).read_text("utf-8")
    page = Page(text)
    assert page.open == []
    return text, page


def test_a_browser_understands_every_border_of_the_style() -> None:
    style = (Path(overlap.__file__).parent / "report" / "style.css").read_text("utf-8")
    borders = re.findall(r"border[a-z-]*: *([^;}]+)", style)
    known = re.compile(r"(0|none|collapse|\d+px|\d+px solid (currentColor|var\(--[a-z]+\)))$")
    assert [border for border in borders if not known.match(border.strip())] == []


@pytest.mark.promise("pages")
def test_the_page_of_a_run_has_all_sections_and_loads_nothing(tmp_path: Path) -> None:
    text, page = page_of(made_run(tmp_path / "run", steps=12, groups=4, samples=4))
    sections = [attrs["id"] for tag, attrs in page.tags if tag == "section"]
    assert sections == ["outcome", "warnings", "problems", "curves", "time", "timeline", "map", "samples",
                        "configuration", "machine"]  # fmt: skip
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a"]
    assert links == [f"#{section}" for section in sections]
    assert [tag for tag, _ in page.tags if tag == "script"] == ["script"]
    loaded = [v for _, attrs in page.tags for name, v in attrs.items() if name in ("src", "href") and v]
    assert [v for v in loaded if not v.startswith(("#", "data:"))] == []
    assert not re.search(r"https?://", text)
    assert "prefers-color-scheme:dark" in text


@pytest.mark.promise("hostile-text")
def test_what_a_policy_writes_is_shown_and_never_run(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", steps=2, kept="all")
    lines = (folder / "trajectories.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows:
        row |= {"answer": HOSTILE, "prompt_id": HOSTILE, "failure": HOSTILE, "verdict": HOSTILE, "compile_log": HOSTILE}
        row["program"] = {"source": HOSTILE, "language": HOSTILE}
        row["tests"] = [{"index": 0, "verdict": HOSTILE, "message": HOSTILE, "input": HOSTILE, "got": HOSTILE}]
        row["parts"] = {HOSTILE: 1.0, "other": 0.0}
        row["kept_as"] = [HOSTILE]
    (folder / "trajectories.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    groups = [json.loads(line) for line in (folder / "groups.jsonl").read_text().splitlines()]
    (folder / "groups.jsonl").write_text(
        "".join(json.dumps({**g, "prompt_id": g["prompt_id"] + HOSTILE}) + "\n" for g in groups)
    )
    text, page = page_of(folder)
    assert [tag for tag, _ in page.tags if tag in ("script", "img", "style")] == ["style", "script"]
    assert [name for _, attrs in page.tags for name in attrs if name.startswith("on")] == []
    assert "⟨00⟩" in text
    assert "\u202e" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_a_page_of_several_runs_compares_them(tmp_path: Path) -> None:
    one = made_run(tmp_path / "one", steps=10, heldout=16, solved=(0.2, 0.9))
    two = made_run(tmp_path / "two", steps=10, heldout=16, solved=(0.2, 0.3), seed=1, overrides=("learn.lr=3e-6",))
    text, page = page_of(one, two, out=tmp_path / "both.html")
    sections = [attrs["id"] for tag, attrs in page.tags if tag == "section"]
    assert sections == ["outcome", "paired", "warnings", "configuration", "samples-axis", "time-axis"]
    differing = re.search(r"<code>learn.lr</code></td><td><code>1e-06</code></td><td><code>3e-06</code>", text)
    assert differing
    assert "run.steps</code>" not in text
    assert "worse (16 problems)" in text
    assert text.count("two against one") == 1


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    runs = [made_run(tmp_path / name / "run", steps=1) for name in "ab"]
    text, _ = page_of(*runs, out=tmp_path / "both.html")
    assert "a/run" in text
    assert "b/run" in text


def test_an_earlier_versions_run_gives_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text, page = page_of(former_run.unpack(tmp_path))
    sections = {attrs["id"] for tag, attrs in page.tags if tag == "section"}
    assert {"outcome", "warnings", "curves", "time", "samples", "configuration", "machine"} <= sections
    assert "pass@1 before the run" in text


@pytest.mark.parametrize("name", ["metrics.jsonl", "groups.jsonl", "trajectories.jsonl", "summary.json", "trace.json"])
def test_a_run_without_one_of_its_files_has_a_report(tmp_path: Path, name: str) -> None:
    folder = made_run(tmp_path / "run", steps=3)
    (folder / name).unlink()
    text, _ = page_of(folder)
    assert 'id="outcome"' in text


def test_a_trace_whose_steps_are_torn_costs_the_timeline_alone(tmp_path: Path) -> None:
    trace = made_run(tmp_path / "run", steps=3, groups=1, samples=2, heldout=0) / "trace.json"
    trace.write_text(trace.read_text().replace('"cat": "learn", ', '"cat": "learn", \n'))
    assert 'id="timeline"' not in page_of(tmp_path / "run")[0]


def test_a_change_without_known_bounds_has_a_report(tmp_path: Path) -> None:
    """As of one problem, in a run of a version that wrote no groups.jsonl."""
    folder = made_run(tmp_path / "run", steps=2, groups=1, samples=2)
    (folder / "groups.jsonl").unlink()
    summary = json.loads((folder / "summary.json").read_text())
    summary["pass_at_1"]["change"] |= {"low": None, "high": None}
    (folder / "summary.json").write_text(json.dumps(summary))
    assert "no clear change, 95% CI - to -" in page_of(folder)[0]


@pytest.mark.parametrize("trace", ["", "[\n", "[\n{\n]", "\x00" * 100])
def test_a_broken_trace_costs_the_timeline_alone(tmp_path: Path, trace: str) -> None:
    folder = made_run(tmp_path / "run", steps=3)
    (folder / "trace.json").write_text(trace)
    text, _ = page_of(folder)
    assert 'id="timeline"' not in text
    assert 'id="samples"' in text


@pytest.mark.parametrize("value", [None, 0, -5.0, 3e38, -3e38, 1e-300])
def test_figures_of_any_size_have_a_report(tmp_path: Path, value: float | None) -> None:
    folder = made_run(tmp_path / "run", steps=9)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    for row in rows[3:6]:
        row |= {name: value for name in row if name != "step"}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text, _ = page_of(folder)
    assert "NaN" not in text
    assert ">nan" not in text.lower()


def test_a_warning_stands_on_the_page_with_its_way_out(tmp_path: Path) -> None:
    text, _ = page_of(ILL["clipping"].make(tmp_path / "run"))
    assert "of the tokens were clipped.</b>" in text
    assert "Lower learn.lr or learn.updates_per_step" in text
    assert "clipping · steps 1 to 20" in text


def test_a_long_runs_report_is_small(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", steps=60, groups=8, samples=8, padding=40_000, eval_samples=0)
    text, _ = page_of(folder)
    assert len(text.encode()) < 5_000_000
    assert "characters left out" in text


def test_only_a_report_is_written_over(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", steps=1)
    overlap.write_report(folder)
    assert overlap.write_report(folder) == folder / "report.html"
    (tmp_path / "mine.html").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        overlap.write_report(folder, out=tmp_path / "mine.html")
    assert (tmp_path / "mine.html").read_text() == "mine"


def test_the_command_tells_where_the_report_is_and_what_it_warns_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ILL["clipping"].make(tmp_path / "run")
    assert cli.main(["report", str(folder), "--out", str(tmp_path / "x.html")]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("WARNING  ")
    assert last == f"{tmp_path / 'x.html'}: open it in a browser"
    assert cli.main(["report", str(tmp_path / "none")]) == 2


def test_the_command_tells_what_changed_between_two_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = made_run(tmp_path / "one", steps=10, heldout=16, solved=(0.2, 0.9))
    two = made_run(tmp_path / "two", steps=10, heldout=16, solved=(0.2, 0.3), seed=1, overrides=("learn.lr=3e-6",))
    assert cli.main(["report", str(one), str(two), "--out", str(tmp_path / "both.html")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("one  10 steps, mean reward 0.")
    assert "held-out pass@1 " in lines[0]
    assert "differs  learn.lr: 1e-06 | 3e-06" in lines
    assert lines[-2].startswith("two against one on held-out problems: -")
    assert lines[-2].endswith("worse (16 problems)")


@pytest.mark.promise("secrets")
def test_passwords_of_a_configuration_are_left_out(tmp_path: Path) -> None:
    override = "episode.command=agent --api-key hunter2 --url here"
    text, _ = page_of(made_run(tmp_path / "run", steps=1, overrides=(override,)))
    assert "hunter2" not in text
    assert "agent --api-key *** --url here" in text


def test_the_report_needs_a_run(tmp_path: Path) -> None:
    arguments: tuple[Any, ...] = ()
    with pytest.raises(ConfigError, match="name one run directory or more"):
        overlap.write_report(*arguments)
