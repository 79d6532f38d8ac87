"""What is no callback is refused at the start, all faults at once."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
from rows import refusal

import overlap
from overlap import Callback, cli
from overlap.config.load import load_config
from overlap.core.errors import ConfigError
from overlap.hooks.checks import check_callbacks, named_callbacks


class Misspelt(Callback):
    def on_stepp(self, run, event):
        pass

    def on_log(self, run, event):
        pass


class Narrow:
    def on_step(self, event):
        pass


class NoMethod:
    on_step = 3


class Fine:
    async def on_step(self, run, event):
        pass


def of(*callbacks: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        check_callbacks(list(callbacks))
    return str(raised.value)


def test_some_of_the_methods_are_enough() -> None:
    fine = Fine()
    assert check_callbacks([fine, Callback()])[0] is fine


@pytest.mark.parametrize(
    ("callback", "says"),
    [
        (Misspelt(), "Misspelt.on_stepp': is not an event; did you mean on_step?"),
        (Misspelt(), "Misspelt.on_log': is not an event; there are on_run_start, on_step"),
        (Narrow(), "cannot be called with run and event"),
        (Narrow(), "write `def on_step(self, run, event)`"),
        (NoMethod(), "is no method, but 3"),
        (Fine, "is a class: give an object of it, Fine()"),
        (object(), "is no callback: give it one of on_run_start, on_step"),
    ],
)
def test_what_is_no_callback_is_refused_with_the_way_out(callback: Any, says: str) -> None:
    assert says in of(callback)


def test_all_faults_are_told_at_once() -> None:
    told = of(Misspelt(), Narrow(), object())
    assert all(part in told for part in ("on_stepp", "Narrow.on_step", "is no callback"))


@pytest.mark.parametrize("given", [Fine(), "module:Class", None])
@pytest.mark.parametrize("call", [overlap.train, overlap.start])
def test_a_list_is_asked_for(call: Any, given: Any) -> None:
    with pytest.raises(ConfigError, match="give a list of callbacks"):
        call(load_config(None, []), callbacks=given)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    made = types.ModuleType("my_callbacks")
    monkeypatch.setitem(sys.modules, "my_callbacks", made)
    return made


def test_the_configuration_names_classes(module: types.ModuleType) -> None:
    module.Mine = Fine  # type: ignore[attr-defined]
    (made,) = named_callbacks(load_config(None, ["run.callbacks=[my_callbacks:Mine]"]))
    assert isinstance(made, Fine)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("my_callbacks:Mnie", "did you mean Mine"),
        ("my_callbacks:Exits", "cannot be made without arguments: it raised SystemExit: 0"),
        ("my_callbacks:Needs", "cannot be made without arguments: it raised TypeError"),
        ("no_such_module:Mine", "importing no_such_module raised ModuleNotFoundError"),
    ],
)
def test_a_class_that_cannot_be_made_is_refused_by_its_path(module: types.ModuleType, path: str, says: str) -> None:
    module.Mine = Fine  # type: ignore[attr-defined]
    module.Exits = type("Exits", (Fine,), {"__init__": lambda self: sys.exit(0)})  # type: ignore[attr-defined]
    module.Needs = type("Needs", (Fine,), {"__init__": lambda self, more: None})  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"run\.callbacks") as raised:
        named_callbacks(load_config(None, [f"run.callbacks=[{path}]"]))
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("dry", "field", "says"),
    [
        ([], "run.callbacks=[no_such_module:Mine]", "importing no_such_module raised ModuleNotFoundError"),
        (["--dry-run"], "run.trackers=[wandb]", "run.trackers='wandb': needs a package that is not installed"),
    ],
)
def test_the_command_refuses_in_one_line_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dry: list[str], field: str, says: str
) -> None:
    monkeypatch.setattr("overlap.hooks.services.find_spec", lambda name: None)
    for module in ("overlap.run.training", "overlap.commands.train"):
        monkeypatch.setattr(f"{module}.prepare", lambda *a: pytest.fail("inputs were loaded"))
    assert says in refusal(cli.main, ["train", *dry, f"run.dir={tmp_path / 'run'}", field])
    assert not (tmp_path / "run").exists()
