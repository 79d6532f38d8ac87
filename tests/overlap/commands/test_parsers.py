"""The parsers of the commands against the work that they import only when it is asked for."""

from __future__ import annotations

import argparse
from typing import get_args

from overlap.commands.parsers import add_commands
from overlap.core import Split
from overlap.inspect.show import NEWEST


def test_choices_and_defaults_that_a_parser_writes_out_are_those_of_the_code() -> None:
    add_commands(commands := argparse.ArgumentParser().add_subparsers())
    flags = {
        (name, flag): action
        for name, parser in commands.choices.items()
        for action in parser._actions
        for flag in action.option_strings
    }
    assert flags["show", "--limit"].default == NEWEST
    assert flags["rollout", "--split"].choices == get_args(Split)
