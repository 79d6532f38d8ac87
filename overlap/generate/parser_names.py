"""Names of parsers before an engine starts: those that the installed vLLM lists in its source. Imports nothing of it.

An engine that starts is the judge (``Reader``): where a list cannot be read here, any name is taken.
"""

from __future__ import annotations

import ast
import difflib
from importlib.machinery import PathFinder
from pathlib import Path

from overlap.config import Config
from overlap.errors import ConfigError

_LISTS = {
    "tool_parser": ("tool_parsers/__init__.py", "_TOOL_PARSERS_TO_REGISTER"),
    "reasoning_parser": ("reasoning/__init__.py", "_REASONING_PARSERS_TO_REGISTER"),
}


def check_parsers(cfg: Config) -> None:
    """Raise ConfigError for ``episode.tool_parser`` or ``episode.reasoning_parser`` that vLLM does not list."""
    for field, (file, variable) in _LISTS.items():
        name, known = getattr(cfg.episode, field), _listed(file, variable) if getattr(cfg.episode, field) else ()
        if known and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(sorted(known))}"
            raise ConfigError(f"episode.{field}", name, f"vLLM has no such parser; {hint}")


def _listed(file: str, variable: str) -> tuple[str, ...]:
    """The keys of a table in vLLM's source; none where there is no such table."""
    spec = PathFinder.find_spec("vllm")
    for folder in (spec and spec.submodule_search_locations) or ():
        try:
            tree = ast.parse(Path(folder, file).read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError):
            continue
        for node in tree.body:
            named = isinstance(node, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == variable for t in node.targets
            )
            if named and isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
                return tuple(str(key.value) for key in node.value.keys if isinstance(key, ast.Constant))
    return ()
