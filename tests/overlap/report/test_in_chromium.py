"""Tests of the report as a browser shows it from the disk: no fault, nothing cut off, no page that scrolls sideways."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, chromium
from ill_runs import ILL
from made_run import made_run

import overlap

HOSTILE = "<img src=x onerror=alert(1)><script>window.broken = 1</script>\u202e" + "x" * 400
WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
OUTSIDE = """[...document.querySelectorAll('.tile')].flatMap(tile => {
  const b = tile.getBoundingClientRect(), texts = [...tile.querySelectorAll('svg text, h3, .keys span')];
  return texts.filter(text => { const a = text.getBoundingClientRect();
    return a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1 || a.bottom > b.bottom + 1; })
    .map(text => tile.querySelector('h3').textContent + ': ' + text.textContent); })"""
UNDER = """[...document.querySelectorAll('svg[data-x]')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
  return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([b, q]) =>
    p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 3 && q.top < p.bottom - 3)
    .map(([b]) => svg.ariaLabel + ': ' + a + ' / ' + b)); })"""
OPEN_ALL = "document.querySelectorAll('details').forEach(each => each.open = true)"
POINT = """(() => { const svg = document.querySelector('svg[data-x]'), box = svg.getBoundingClientRect();
  svg.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + box.width / 2, clientY: box.top + 50}));
  return svg.parentNode.querySelector('.read').textContent; })()"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports of a run, of an ill and hostile one, and of both compared."""
    folder = tmp_path_factory.mktemp("pages")
    one = made_run(folder / "one", steps=40, groups=6, samples=6, heldout=20, turns=2, staleness=1)
    two = ILL["clipping"].make(folder / "two")
    rows = [json.loads(line) for line in (two / "trajectories.jsonl").read_text("utf-8").splitlines()]
    for row in rows:
        row |= {"prompt_id": HOSTILE, "answer": HOSTILE, "prompt": HOSTILE, "failure": HOSTILE}
    (two / "trajectories.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    groups = [json.loads(line) for line in (two / "groups.jsonl").read_text("utf-8").splitlines()]
    named = (json.dumps({**row, "prompt_id": f"{row['prompt_id']} {HOSTILE}"}) for row in groups)
    (two / "groups.jsonl").write_text("".join(f"{line}\n" for line in named))
    return {
        "one": overlap.write_report(one),
        "two": overlap.write_report(two),
        "both": overlap.write_report(one, two, out=folder / "both.html"),
    }


@pytest.mark.promise("pages")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", ["one", "two", "both"])
def test_a_report_is_shown_whole_and_without_faults(
    browser: Browser, pages: dict[str, Path], name: str, width: int, dark: bool
) -> None:
    browser.faults.clear()
    browser.look(width, dark=dark)
    browser.open(f"{pages[name].as_uri()}?{width}{dark}")
    browser.wait(f"location.search == '?{width}{dark}' && document.readyState == 'complete'")
    browser.evaluate(OPEN_ALL)
    assert browser.evaluate(WIDE) == 0
    assert browser.evaluate(OUTSIDE) == []
    assert browser.evaluate(UNDER) == []
    assert browser.evaluate("typeof window.broken") == "undefined"
    assert browser.faults == []


def test_the_pointer_reads_values_off_a_curve(browser: Browser, pages: dict[str, Path]) -> None:
    browser.look(1280)
    browser.open(f"{pages['one'].as_uri()}?read")
    browser.wait("location.search == '?read' && document.readyState == 'complete'")
    assert browser.evaluate(POINT).startswith("step 18:  samples 0.")
