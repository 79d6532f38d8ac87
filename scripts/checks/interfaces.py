"""Check how packages are imported: by their public modules, of which an ``__init__`` hands on nothing.

Only overlap, overlap.core and sandbox hand out names; what begins with an underscore is used in its own package only.
That concerns the packages directly below overlap/ and sandbox/. Tests may import any name, and are not read.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOTS = ("overlap", "sandbox")
FOLDERS = (*ROOTS, "recipes", "scripts")
DOORS = ("overlap/__init__.py", "overlap/core/__init__.py", "sandbox/__init__.py")
HARNESS = "sandbox.pyharness."
"""Runs beside a program: its modules' underscores keep them apart from the names of programs."""


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line of each import, and what it names with its module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)


def faults(place: str, tree: ast.Module) -> Iterator[str]:
    """One line for each fault of the module at ``place``."""
    if place.endswith("/__init__.py") and place not in DOORS:
        more = [node for node in tree.body if not isinstance(node, ast.Expr)]
        yield from (f"{place}:{node.lineno}: code in an __init__: put it into a module" for node in more[:1])
    own = Path(place).with_suffix("").parts[:2]
    for line, name in imports(tree):
        parts = name.split(".")
        private = [part for part in parts[1:] if part.startswith("_") and not part.startswith("__")]
        if parts[0] in ROOTS and tuple(parts[:2]) != own and private and not name.startswith(HARNESS):
            yield f"{place}:{line}: imports {name}, but {private[0]} is private to its package"


def main(root: Path) -> int:
    paths = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    found = [
        fault
        for path in paths
        for fault in faults(path.relative_to(root).as_posix(), ast.parse(path.read_text("utf-8"), str(path)))
    ]
    print("\n".join(found) if found else f"{len(paths)} files import public names from the modules that define them")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
