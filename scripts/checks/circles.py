"""Check that no modules import each other in a circle: at the level of modules, also for type checkers only."""

import ast
import sys
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

FOLDERS = ("overlap", "sandbox", "recipes", "scripts")


def imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """What a module imports, each name with its module; an import in a function comes later than all modules."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imports(ast.iter_child_nodes(node))


def main(root: Path) -> int:
    paths = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
    }
    graph = {}
    for module, path in paths.items():
        found = imports(ast.parse(path.read_text("utf-8"), str(path)).body)
        graph[module] = {name if name in paths else name.rpartition(".")[0] for name in found} & paths.keys() - {module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = error.args[1][::-1]
        print(f"{paths[circle[0]].relative_to(root)}: imports itself: {' -> '.join(circle)}")
        return 1
    print(f"{len(paths)} modules import each other in no circle")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
