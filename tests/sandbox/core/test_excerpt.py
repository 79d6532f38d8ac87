"""An excerpt says how much it leaves out, can always be written, and is the same after JSON and pickle."""

from __future__ import annotations

import hashlib
import json
import pickle
import random

import pytest

from sandbox import CaseResult, Excerpt, Verdict
from sandbox.core.excerpt import EXCERPT_CHARS, ExcerptWriter

TEXTS: dict[str, str | bytes] = {
    "empty": "",
    "short": "3\n",
    "as long as fits": "x" * EXCERPT_CHARS,
    "one more": "x" * (EXCERPT_CHARS + 1),
    "wide letters": "ü😀" * EXCERPT_CHARS,
    "no UTF-8": b"\xff\x00ok\xfe",
    "much that is no UTF-8": b"\xc3" * 9000,
    "a byte of a file that is no UTF-8": "\udcff",
    "half a letter": "\ud83d",
    "escapes": 'a\x1b[31m\0"\\xff',
    "16 MB": b"0123456789abcdef" * (1 << 20),
}


@pytest.mark.parametrize("name", TEXTS)
def test_an_excerpt_survives_json_and_pickle_and_can_be_encoded(name: str) -> None:
    made = Excerpt.of(TEXTS[name])
    assert Excerpt.from_json(json.loads(json.dumps(made.to_json()))) == made
    assert pickle.loads(pickle.dumps(made)) == made
    assert len(json.dumps(made.to_json(), ensure_ascii=False).encode()) < 4 * EXCERPT_CHARS + 500
    assert isinstance(made.to_json(), str) == made.whole


@pytest.mark.parametrize("name", TEXTS)
def test_an_excerpt_is_the_text_or_has_its_ends_its_size_and_its_digest(name: str) -> None:
    text, made = TEXTS[name], Excerpt.of(TEXTS[name])
    data = (
        text
        if isinstance(text, bytes)
        else text.encode("utf-8", "surrogateescape" if "\udcff" in text else "surrogatepass")
    )
    assert made.size == len(data)
    if made.whole:
        assert made.head == text
    else:
        assert made.sha256 == hashlib.sha256(data).hexdigest()
    if made.tail:
        shown = data.decode("utf-8", "backslashreplace")
        assert shown.startswith(made.head)
        assert shown.endswith(made.tail)
        assert len(made.head) + len(made.tail) == EXCERPT_CHARS
        assert f"({len(data)} bytes)" in str(made)


def test_parts_of_a_text_give_the_excerpt_of_the_whole() -> None:
    chance = random.Random(1)
    for size in (0, 5, 800, 3199, 3200, 3201, 20_000):
        data, place, writer = chance.randbytes(size), 0, ExcerptWriter()
        while place < size:
            step = chance.choice((1, 7, 900, 4000))
            writer.add(data[place : place + step])
            place += step
        assert writer.excerpt() == Excerpt.of(data)


def test_what_people_see_of_it_has_no_control_characters_but_lines() -> None:
    assert str(Excerpt.of("a\n\x1b[2Kb\r")) == "a\n\\x1b[2Kb\\r"


def test_a_result_survives_json_with_and_without_what_was_printed() -> None:
    plain = CaseResult(0, Verdict.AC, 0.1, 0.2, 3)
    assert plain.to_json().keys() == {"index", "verdict", "cpu_s", "wall_s", "memory_bytes", "message", "feedback"}
    assert CaseResult.from_json(plain.to_json()) == plain
    full = CaseResult(
        0, Verdict.RE, 0.1, 0.2, 3, got=Excerpt.of("x" * 9999), stderr=Excerpt.of(b"\xff"), exit_code=0, signal=6
    )
    assert CaseResult.from_json(json.loads(json.dumps(full.to_json()))) == full
