"""Tests of the page of ``overlap view`` in a headless Chromium, as a person uses it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, chromium
from kept_rows import kept_row, write_rows
from served_view import served_view

HOSTILE = "<img src=x onerror=alert(1)><script>window.broken = 1</script>\u202e\x1b[31m"
ROWS = "document.querySelectorAll('.row:not(.heads):not(.waiting)').length"
SHOWN = "(document.querySelector('#detail h1')?.innerText ?? '')"


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
    browser.open(address)
    browser.wait(f"{ROWS} > 5")
    return browser


@pytest.mark.promise("pages")
def test_keys_move_open_and_close(page: Browser) -> None:
    page.press("j")
    page.press("j")
    page.press("Enter")
    page.wait("document.querySelector('#detail h1')?.innerText.includes('g49s3')")
    assert "open=s.5.49.3" in page.evaluate("location.hash")
    page.press("j")
    page.wait(f"{SHOWN}.includes('g49s2')")
    page.press("g")
    page.wait(f"{SHOWN} == 'Group 49 of step 5'")
    page.press("Escape")
    page.wait("!location.hash.includes('open')")
    page.press("?")
    assert page.wait("document.getElementById('keys').open")
    assert page.faults == []


def test_an_address_opens_the_same_view(page: Browser, address: str) -> None:
    page.open("about:blank")
    page.open(f"{address}#verdict=WA&step=2&sort=tokens&open=s.2.10.1")
    page.wait(f"{SHOWN}.includes('g10s1')")
    page.wait("document.getElementById('count').innerText == '17 samples'")
    assert page.evaluate("document.getElementById('filters').verdict.value") == "WA"
    assert page.evaluate("document.querySelector('.why').innerText").startswith("test 3 of 5: wrong answer: expected")
    assert page.faults == []


def test_a_search_is_typed_and_filters(page: Browser) -> None:
    page.press("/")
    for key in "hostile":
        page.press(key)
    page.wait("document.getElementById('count').innerText == '1 sample'")
    assert page.evaluate(ROWS) == 1


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
@pytest.mark.parametrize("view", ["", "#open=s.2.10.1", "#tab=groups&open=g.2.10", "#tab=problems&open=p.p4"])
def test_a_telephone_needs_no_scrolling_to_the_side(view: str, dark: bool, page: Browser, address: str) -> None:
    page.look(400, dark=dark)
    page.open("about:blank")
    page.open(address + view)
    page.wait("document.querySelector('#detail h1') !== null" if view else f"{ROWS} > 3")
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    assert page.evaluate("document.getElementById('listing').offsetHeight > 0") == (not view)
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
