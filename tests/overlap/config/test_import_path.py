"""Functions of the user's by their import path: what is refused, in one line with a way out."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest

from overlap.config.import_path import import_function
from overlap.config.load import load_config
from overlap.core.errors import ConfigError


class Doubled(Protocol):
    def __call__(self, number: float) -> float: ...


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "good_one.py").write_text("number = 3\ndef double(number, scale=2):\n    return scale * number\n")
    (tmp_path / "bad_one.py").write_text("import nothing_like_it\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_function_is_found_by_module_and_name(modules: None) -> None:
    assert import_function("learn.loss", "good_one:double", Doubled)(4) == 8


def test_modules_are_also_looked_for_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_me.py").write_text("def double(number):\n    return 2 * number\n")
    monkeypatch.setattr("sys.path", [])
    monkeypatch.chdir(tmp_path)
    assert import_function("learn.loss", "beside_me:double", Doubled)(4) == 8


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("nowhere:double", "importing nowhere raised ModuleNotFoundError: .*; name a module that Python finds"),
        ("bad_one:double", "importing bad_one raised ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("good_one:dubble", "module good_one has no function dubble; did you mean double"),
        ("good_one:number", "module good_one has no function number; define it, or name one of double"),
        ("math:pi", "module math has no function pi"),
        ("good_one:", 'must be "module:name", for instance my_module:my_function'),
        ("os:getcwd", r"cannot be called with 1 arguments \(.*\): write `def getcwd\(number\)`, see .*Doubled"),
    ],
)
def test_what_cannot_be_used_is_refused_with_field_value_and_way_out(modules: None, path: str, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"^learn\.loss='{path}': {says}") as refused:
        import_function("learn.loss", path, Doubled)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("field", ["loss", "advantage", "correction"])
def test_a_field_takes_its_choices_and_import_paths_alone(field: str) -> None:
    assert getattr(load_config(None, [f"learn.{field}=my.module:mine"]).learn, field) == "my.module:mine"
    for wrong in ("mine", "my module:mine", "module:mine:too", ":mine", "module:"):
        with pytest.raises(ConfigError, match=rf"^learn\.{field}=.* or a function of yours as my_module:my_function"):
            load_config(None, [f"learn.{field}={wrong}"])
