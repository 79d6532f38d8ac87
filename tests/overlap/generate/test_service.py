"""The calls between the driver and the process of an engine: what the one makes, the other serves."""

import ast
import inspect
from pathlib import Path

from engine_stub import StubEngine

from overlap.generate import client
from overlap.generate.engine import VllmEngine
from overlap.generate.host import EngineHost


def test_the_process_of_an_engine_serves_every_call_of_the_driver_and_so_does_its_double():
    tree = ast.parse(Path(client.__file__).read_text())
    asked = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "self._ask"]
    assert len(asked) > 10
    for name, *given in ((ast.literal_eval(call.args[1]), *call.args[2:]) for call in asked):
        for end in (EngineHost if name == "open" else VllmEngine, StubEngine):
            inspect.signature(getattr(end, name)).bind(None, *given)
