"""The vLLM door: the only room, beside the sending half of ``weights``, that imports vllm.

Consumes  requests and weight updates; produces each trajectory the moment it ends
Waits for the gate, which opens when committed weights are loaded
Woken by  ``load``, the end of a response, the death of the engine
"""

from overlap.generate.generator import VllmGenerator
from overlap.generate.parser_names import check_parsers
from overlap.generate.replicas import Replicas
from overlap.generate.serve import Host, serve
from overlap.generate.site import Site
from overlap.generate.steady import PATIENCE, Patience, SteadyGenerator

__all__ = [
    "PATIENCE",
    "Host",
    "Patience",
    "Replicas",
    "Site",
    "SteadyGenerator",
    "VllmGenerator",
    "check_parsers",
    "serve",
]
