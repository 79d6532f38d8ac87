"""Check names: public classes and functions are unique over overlap, sandbox and recipes, and so are some module names.

A definition counts where it stands at the top of a module and its name has no leading underscore. Methods do not count,
nor do names that a package's ``__init__`` hands on: by an import, or by a function that imports the one it is named
after and calls it.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("overlap", "sandbox", "recipes")
MODULES = ("nodes", "wire", "state", "sites", "places")
"""Names that say so little that only one module may have each of them."""
REPEATED = (
    "main",  # of a module that ``python -m`` runs
    "command",  # of a console script
    "reward",  # of a file of reward functions: the name that the reward worker looks for
)

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def definitions(body: list[ast.stmt]) -> Iterator[Definition]:
    """Yield the public definitions of a module, those under an ``if`` or ``try`` at its top included."""
    for node in body:
        if isinstance(node, Definition):
            if not node.name.startswith("_") and node.name not in REPEATED:
                yield node
        elif isinstance(node, ast.If | ast.Try):
            handlers = node.handlers if isinstance(node, ast.Try) else []
            for block in (node.body, node.orelse, *(handler.body for handler in handlers)):
                yield from definitions(block)


def hands_on(path: Path, node: Definition) -> bool:
    """Whether a function of a package's ``__init__`` imports the one that it is named after."""
    imported = (alias.name for each in ast.walk(node) if isinstance(each, ast.ImportFrom) for alias in each.names)
    return path.name == "__init__.py" and node.name in imported


def places(root: Path, paths: list[Path]) -> dict[str, dict[Path, int]]:
    """Return for each name the files that define it, with the line of the first definition there."""
    found: dict[str, dict[Path, int]] = defaultdict(dict)
    for path in paths:
        for node in definitions(ast.parse(path.read_text(encoding="utf-8"), filename=str(path)).body):
            if not hands_on(path, node):
                found[node.name].setdefault(path.relative_to(root), node.lineno)
    return found


def main(root: Path) -> int:
    paths = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    names = places(root, paths)
    found = [
        f"{name}: {', '.join(f'{path}:{line}' for path, line in where.items())}: rename all but one"
        for name, where in sorted(names.items())
        if len(where) > 1
    ]
    for module in MODULES:
        same = [str(path.relative_to(root)) for path in paths if path.stem == module]
        if len(same) > 1:
            found.append(f"module {module}: {', '.join(same)}: rename all but one")
    print(
        "\n".join([*found, f"{len(found)} names are used twice"])
        if found
        else f"{len(names)} public names, each used once"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
