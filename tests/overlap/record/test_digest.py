"""A digest is of the contents of prompts and problems, wherever they lie."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Any

from places import ROOT

from overlap.core import Prompt
from overlap.record.digest import data_digest

PROMPTS = [Prompt(f"p{i}", (1, 2, i), data={"tests": [("1", "2")]}) for i in range(4)]


@dataclass(frozen=True)
class _Problem:
    tests: tuple[Any, ...]
    names: frozenset[str] = frozenset()


class _Opaque:
    """An object whose contents nobody knows; its repr holds an address."""


def test_a_digest_is_of_the_contents_and_the_same_in_every_process():
    code = (
        "from overlap.core import Prompt; from overlap.record.digest import data_digest;"
        "print(data_digest([Prompt('a', (1, 2), 'x', {'s': {'b', 'a', 'c'}, 'n': None, 'f': 0.5})]))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(told) == 1


def test_a_digest_sees_every_part_of_a_problem_and_not_where_an_object_lies():
    def of(data: Any, **fields: Any) -> str:
        return data_digest([replace(Prompt("a", (1, 2), "x", data), **fields)])

    base = _Problem((("1", b"2"), {"k": [1, 2.5]}), frozenset("ab"))
    others = [
        _Problem((("1", b"3"), {"k": [1, 2.5]}), frozenset("ab")),
        _Problem((("1", "2"), {"k": [1, 2.5]}), frozenset("ab")),
        _Problem((("1", b"2"), {"k": [1, 2]}), frozenset("ab")),
        _Problem((("1", b"2"), {"k": [1, 2.5]}), frozenset("abc")),
        None,
    ]
    digests = [of(base), *map(of, others), of(base, id="b"), of(base, token_ids=(1, 3)), of(base, prefill="y")]
    assert len(set(digests)) == len(digests)
    assert of(_Opaque()) == of(_Opaque())
    assert data_digest(PROMPTS) != data_digest(PROMPTS[::-1])
