"""Check sizes: no Python file over 500 lines (a warning over 400), no function over 50 without its docstring, and no
room (a package directly below overlap/ or sandbox/) over its budget: a feature that does not fit says what leaves.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

WARN_FILE_LINES, MAX_FILE_LINES = 400, 500
MAX_FUNCTION_LINES = 50
FOLDERS = ("overlap", "sandbox", "recipes", "scripts", "tests")
BUDGETS = "scripts/checks/rooms.txt"
"""A line for each room: its name and the lines of Python that it may have."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def function_lines(function: Function) -> int:
    """Lines from ``def`` to the last one, without the docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function, clean=False) is None:
        return lines
    docstring = function.body[0]
    return lines - ((docstring.end_lineno or docstring.lineno) - docstring.lineno + 1)


def faults(path: Path) -> Iterator[tuple[bool, str]]:
    """Yield a line for each thing in ``path`` that is too long, and whether the line is a fault or only a warning."""
    source = path.read_text(encoding="utf-8")
    if (count := len(source.splitlines())) > MAX_FILE_LINES:
        yield True, f"{path}: {count} lines, at most {MAX_FILE_LINES}: split it"
    elif count > WARN_FILE_LINES:
        yield (
            False,
            f"warning: {path}: {count} lines, from {MAX_FILE_LINES + 1} on it is refused: think of splitting it",
        )
    for node in ast.walk(ast.parse(source, filename=str(path))):
        if isinstance(node, Function) and (count := function_lines(node)) > MAX_FUNCTION_LINES:
            yield True, f"{path}:{node.lineno}: {node.name}: {count} lines, at most {MAX_FUNCTION_LINES}: split it"


def over_budget(root: Path, budgets: str) -> Iterator[tuple[bool, str]]:
    """Yield a fault for each room that has more lines than its budget, has none, or is gone."""
    allowed = {name: int(lines) for name, lines in map(str.split, budgets.splitlines())}
    rooms: dict[str, int] = {}
    for path in (path for top in ("overlap", "sandbox") for path in (root / top).rglob("*.py")):
        room = "/".join(path.relative_to(root).parts[:-1][:2])
        rooms[room] = rooms.get(room, 0) + len(path.read_text(encoding="utf-8").splitlines())
    for room in sorted(rooms.keys() | allowed.keys()):
        have, most = rooms.get(room, 0), allowed.get(room, 0)
        if have > most or not have:
            yield True, f"{room}: {have} lines, {most} in {BUDGETS}: take something out, or change the budget there"


def main(root: Path) -> int:
    paths = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    found = [fault for path in paths for fault in faults(path)]
    if (root / BUDGETS).is_file():
        found += over_budget(root, (root / BUDGETS).read_text(encoding="utf-8"))
    refused = any(fault for fault, _ in found)
    print("\n".join([*(line for _, line in found), *([] if refused else [f"{len(paths)} files within their sizes"])]))
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
