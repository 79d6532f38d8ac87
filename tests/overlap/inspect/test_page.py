"""Tests of the page in a headless Chromium, served and as a file, as a person uses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, chromium
from ill_runs import ILL
from kept_rows import kept_row, write_rows
from made_run import made_run
from served_view import served_view

import overlap

HOSTILE = "<img src=x onerror=alert(1)><script>window.broken = 1</script>\u202e\x1b[31m" + "x" * 400
ROWS = "document.querySelectorAll('.row:not(.heads)').length"
SHOWN = "(document.querySelector('#detail h1')?.innerText ?? '')"
WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
INSIDE = """[...document.querySelectorAll('#detail')].map(box => box.scrollWidth - box.clientWidth)[0]"""
OUTSIDE = """[...document.querySelectorAll('.tile')].flatMap(tile => {
  const b = tile.getBoundingClientRect(), texts = [...tile.querySelectorAll('svg text, h3, .keys span')];
  return texts.filter(text => { const a = text.getBoundingClientRect();
    return a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1 || a.bottom > b.bottom + 1; })
    .map(text => tile.querySelector('h3').textContent + ': ' + text.textContent); })"""
UNDER = """[...document.querySelectorAll('.tile svg')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
  return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([b, q]) =>
    p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 3 && q.top < p.bottom - 3)
    .map(([b]) => svg.ariaLabel + ': ' + a + ' / ' + b)); })"""
OPEN_ALL = "document.querySelectorAll('details').forEach(each => each.open = true)"
OPENED = "[...document.querySelectorAll('#run > details')].every(each => each.children.length > 1)"
POINT = """(() => { const svg = document.querySelector('.tile svg'), box = svg.getBoundingClientRect();
  svg.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + box.width / 2, clientY: box.top + 50}));
  return svg.parentNode.querySelector('.read').textContent; })()"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """250 samples, of which one is hostile."""
    rows = [kept_row(step=1 + n // 50, group=n // 5, sample=n % 5, verdict="AC" if n % 3 else "WA") for n in range(249)]
    bad = {"got": HOSTILE, "message": HOSTILE, "stderr": HOSTILE}
    rows.append(kept_row(step=5, group=49, sample=4, prompt_id="hostile", prompt=HOSTILE, answer=HOSTILE, test=bad))
    return write_rows(tmp_path_factory.mktemp("page") / "run", *rows)


@pytest.fixture(scope="module")
def address(run: Path) -> Iterator[str]:
    with served_view(run) as (found, _):
        yield found


@pytest.fixture
def page(browser: Browser, address: str) -> Browser:
    browser.faults.clear()
    browser.look(1280)
    browser.open("about:blank")
    browser.open(f"{address}#tab=samples")
    browser.wait(f"{ROWS} > 5")
    return browser


@pytest.mark.promise("pages")
def test_keys_move_open_and_close(page: Browser) -> None:
    page.press("j")
    page.press("j")
    page.press("Enter")
    page.wait(f"{SHOWN}.includes('g49s3')")
    assert "open=s.5.49.3" in page.evaluate("location.hash")
    page.press("j")
    page.wait(f"{SHOWN}.includes('g49s2')")
    page.press("g")
    page.wait(f"{SHOWN} == 'Group 49 of step 5'")
    page.press("Escape")
    page.wait("!location.hash.includes('open')")
    page.press("3")
    page.wait("document.getElementById('count').innerText == '1 problem'")
    page.press("0")
    page.wait("document.querySelector('#run') !== null")
    page.press("?")
    assert page.wait("document.getElementById('keys').open")
    assert page.faults == []


@pytest.mark.parametrize(
    ("choice", "count"),
    [
        ("verdict=WA&step=2", 17),
        ("only=failed", 84),
        ("only=kept:worst", 250),
        ("problem=hostile", 1),
        ("only=weak", 0),
    ],
)
def test_an_address_opens_the_same_view(choice: str, count: int, page: Browser, address: str) -> None:
    page.open("about:blank")
    page.open(f"{address}#tab=samples&{choice}&sort=tokens&open=s.2.10.2")
    page.wait(f"{SHOWN}.includes('g10s2')")
    page.wait(f"document.getElementById('count').innerText.startsWith('{count} sample')")
    assert page.evaluate("document.querySelector('.why').innerText").startswith("accepted: ")
    assert page.faults == []


def test_a_search_is_typed_and_filters(page: Browser) -> None:
    page.press("/")
    for key in "hostile":
        page.press(key)
    page.wait("document.getElementById('count').innerText == '1 sample'")
    assert page.evaluate(ROWS) == 1


def test_samples_are_sorted_and_those_without_a_figure_come_last(page: Browser) -> None:
    script = """(samples = [0.5, null, 1, 0].map((reward, sample) => ({ reward, sample, step: 1, verdict: 'WA' })),
      Promise.all(['reward', '-reward', '-step'].map(sort => listOf({ tab: 'samples', q: '', split: '', step: '',
      problem: '', verdict: '', only: '', sort }).then(rows => rows.map(row => row.sample).join('')))))"""
    assert page.evaluate(script) == ["3021", "2031", "3210"]


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([1e-6, 1e-3, 1.0], ["1e-6", "1e-5", "1e-4", "1e-3", "0.01", "0.1", "1"]),
        ([0.0, 1e-3, 1.0], ["0", "0.5", "1"]),
        ([2.0, 2.0, 2.0], ["0", "1", "2"]),
        ([-1.0, 0.0, 1.0], ["-1", "0", "1"]),
        ([12_000.0, 30_000.0], ["0", "10k", "20k", "30k"]),
    ],
)
def test_an_axis_follows_the_range_of_its_values(values: list[float], labels: list[str], page: Browser) -> None:
    found = page.evaluate(f"ticks(axisOf([1], {values}, {{ share: false, zero: true }})).map(([, label]) => label)")
    assert found == labels


@pytest.mark.promise("hostile-text")
def test_what_a_model_wrote_stays_text(page: Browser, address: str) -> None:
    page.open(f"{address}#open=s.5.49.4")
    page.wait(f"{SHOWN}.includes('g49s4')")
    text = page.evaluate("document.getElementById('detail').textContent")
    assert "<script>window.broken = 1</script>\\u202e\\u001b[31m" in text
    assert page.evaluate("document.querySelectorAll('#detail img, #detail script').length") == 0
    assert page.evaluate("window.broken === undefined")
    assert page.faults == []


@pytest.mark.promise("pages")
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("view", ["tab=samples", "open=s.5.49.4", "tab=groups&open=g.2.10", "tab=problems&open=p.p4"])
def test_a_telephone_needs_no_scrolling_to_the_side(view: str, dark: bool, page: Browser, address: str) -> None:
    page.look(400, dark=dark)
    page.open("about:blank")
    page.open(f"{address}#{view}")
    page.wait("document.querySelector('#detail h1') !== null" if "open" in view else f"{ROWS} > 3")
    assert page.evaluate(WIDE) == 0
    assert page.evaluate(INSIDE) == 0
    assert page.evaluate("document.getElementById('listing').offsetHeight > 0") == ("open" not in view)
    assert page.faults == []


def test_a_long_list_is_shown_by_the_rows_in_sight(page: Browser) -> None:
    page.evaluate("document.getElementById('list').scrollTop = 1e6")
    page.wait("[...document.querySelectorAll('.row')].some(row => row.innerText.includes('1·g0s0'))")
    assert page.evaluate(ROWS) < 80


def test_a_sample_that_is_written_meanwhile_appears(page: Browser, run: Path) -> None:
    write_rows(run, kept_row(step=6, group=60, sample=0, prompt_id="newcomer"))
    page.wait("document.querySelector('.row.sample:not(.heads)').innerText.includes('newcomer')")
    page.wait("document.getElementById('count').innerText == '251 samples'")
    assert page.faults == []


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
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
    browser: Browser, files: dict[str, Path], name: str, width: int, dark: bool
) -> None:
    browser.faults.clear()
    browser.look(width, dark=dark)
    browser.open(f"{files[name].as_uri()}?{width}{dark}")
    browser.wait(f"location.search == '?{width}{dark}' && document.querySelectorAll('.tile').length > 4")
    assert browser.evaluate("document.querySelectorAll('.tile').length") <= 12
    browser.evaluate(OPEN_ALL)
    browser.wait(OPENED)
    assert browser.evaluate(WIDE) == 0
    assert browser.evaluate(INSIDE) == 0
    assert browser.evaluate(OUTSIDE) == []
    assert browser.evaluate(UNDER) == []
    assert browser.evaluate("typeof window.broken") == "undefined"
    assert browser.faults == []


def test_a_report_reads_values_off_a_curve_and_holds_samples_that_are_searched(
    browser: Browser, files: dict[str, Path]
) -> None:
    browser.look(1280)
    browser.open(f"{files['one'].as_uri()}?read")
    browser.wait("location.search == '?read' && document.querySelector('.tile') !== null")
    assert browser.evaluate(POINT).startswith("step 18:  samples 0.")
    browser.press("1")
    browser.wait(f"{ROWS} > 5")
    browser.press("j")
    browser.press("Enter")
    browser.wait("document.querySelector('#detail .why') !== null")
    browser.press("/")
    for key in "problems-3":
        browser.press(key)
    browser.wait("/^([1-9]|1\\d) samples of /.test(document.getElementById('count').innerText)")
    assert browser.faults == []
