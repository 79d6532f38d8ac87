"""Holds the doors: a room is imported by the names that its ``__init__`` hands out, never past it.

A room is a package directly below overlap/ or sandbox/. Tests may look into the room that they test, and are not read.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

HOUSES = ("overlap", "sandbox")
FOLDERS = (*HOUSES, "recipes", "scripts")


def handed_out(door: Path) -> set[str]:
    """The names in a door's ``__all__``. Raises ValueError where there is none."""
    for node in ast.parse(door.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [getattr(t, "id", "") for t in node.targets] == ["__all__"]:
            return set(ast.literal_eval(node.value))
    raise ValueError(f"{door}: no __all__ says what the room hands out")


def doors(root: Path) -> dict[str, set[str]]:
    """Room → names that others may use."""
    found = (door for house in HOUSES for door in sorted((root / house).glob("*/__init__.py")))
    return {f"{door.parts[-3]}.{door.parts[-2]}": handed_out(door) for door in found}


def asked_for(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Line, module and name of each import; the name is empty for ``import module``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.lineno, node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)


def faults(root: Path, path: Path, rooms: dict[str, set[str]]) -> Iterator[str]:
    """One line for each import of ``path`` that goes past a door."""
    home = ".".join(path.relative_to(root).parts[:2])
    for line, module, name in asked_for(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        room = ".".join(module.split(".")[:2])
        if room == home or room not in rooms:
            continue
        if module != room:
            yield f"{path}:{line}: imports {module} past the door of {room}: import what {room} hands out"
        elif name and name not in rooms[room]:
            yield f"{path}:{line}: {room} does not hand out {name}: add it to its __all__, or do without"


def main(root: Path) -> int:
    rooms = doors(root)
    paths = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    found = [fault for path in paths for fault in faults(root, path, rooms)]
    print("\n".join(found) if found else f"{len(rooms)} doors, {len(paths)} files, none goes past one")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
