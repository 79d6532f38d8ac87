"""The calls between the driver and the process of an engine: both ends have those of ``EngineService``, and no more."""

import ast
import inspect
from pathlib import Path

import pytest
from engine_stub import StubEngine

from overlap.generate import client
from overlap.generate.engine import VllmEngine
from overlap.generate.host import EngineHost
from overlap.generate.service import EngineService


def coroutines(owner):
    found = inspect.getmembers(owner, inspect.iscoroutinefunction)
    return {name: method for name, method in found if not name.startswith("_")}


def made_by_the_driver():
    """Names behind ``EngineService.`` in the client."""
    tree = ast.parse(Path(client.__file__).read_text())
    return {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "EngineService"}


def test_the_driver_makes_every_call_of_the_service_and_no_other():
    assert made_by_the_driver() == coroutines(EngineService).keys()


@pytest.mark.parametrize("ends", [(EngineHost, VllmEngine), (StubEngine,)])
def test_the_process_of_an_engine_serves_every_call_with_the_same_parameters(ends):
    served = {name: method for end in reversed(ends) for name, method in coroutines(end).items()}
    wanted = coroutines(EngineService)
    assert served.keys() - {"serve", "do", "call", "close", "prepare"} == wanted.keys()
    for name, method in wanted.items():
        assert list(inspect.signature(served[name]).parameters) == list(inspect.signature(method).parameters), name
