"""Generation: engines in processes of their own, which sample responses and load the learner's weights.

Consumes  requests and weight updates; produces each trajectory the moment it ends
Waits for the gate, which opens when committed weights are loaded
Woken by  ``load``, the end of a response, the death of an engine
"""

from typing import TYPE_CHECKING

from overlap.generate.client import EngineClient
from overlap.generate.engines import Engines
from overlap.generate.options import check_options
from overlap.generate.restart import RESTARTS, RestartPolicy
from overlap.generate.service import EngineSite
from overlap.generate.start import check_parsers

if TYPE_CHECKING:
    from overlap.generate.host import EngineHost, serve_engine
else:
    from sandbox.lazy import names

    __getattr__ = names(__name__)  # it runs as the main module of a process

__all__ = [
    "RESTARTS",
    "EngineClient",
    "EngineHost",
    "EngineSite",
    "Engines",
    "RestartPolicy",
    "check_options",
    "check_parsers",
    "serve_engine",
]
