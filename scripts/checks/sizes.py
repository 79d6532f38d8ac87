"""Holds the sizes: no Python file over 400 lines, no function over 50 lines (its docstring not counted)."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50
FOLDERS = ("overlap", "sandbox", "recipes", "scripts", "tests")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def function_lines(function: Function) -> int:
    """Lines from ``def`` to the last one, without the docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function, clean=False) is None:
        return lines
    docstring = function.body[0]
    return lines - ((docstring.end_lineno or docstring.lineno) - docstring.lineno + 1)


def faults(path: Path) -> Iterator[str]:
    """One line for each thing in ``path`` that is too long."""
    source = path.read_text(encoding="utf-8")
    if (count := len(source.splitlines())) > MAX_FILE_LINES:
        yield f"{path}: {count} lines, at most {MAX_FILE_LINES}: split it"
    for node in ast.walk(ast.parse(source, filename=str(path))):
        if isinstance(node, Function) and (count := function_lines(node)) > MAX_FUNCTION_LINES:
            yield f"{path}:{node.lineno}: {node.name}: {count} lines, at most {MAX_FUNCTION_LINES}: split it"


def main(root: Path) -> int:
    paths = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    found = [fault for path in paths for fault in faults(path)]
    print("\n".join(found) if found else f"{len(paths)} files within their sizes")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
