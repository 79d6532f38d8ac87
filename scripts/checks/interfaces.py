"""Check that packages are imported through their interfaces: by the names in the ``__all__`` of their ``__init__``.

That concerns the packages directly below overlap/ and sandbox/. Tests may import any module, and are not read.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOTS = ("overlap", "sandbox")
FOLDERS = (*ROOTS, "recipes", "scripts")


def exported(init: Path) -> set[str]:
    """The names in ``__all__``. Raises ValueError where there is none."""
    for node in ast.parse(init.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [getattr(t, "id", "") for t in node.targets] == ["__all__"]:
            return set(ast.literal_eval(node.value))
    raise ValueError(f"{init}: no __all__ lists what the package exports")


def interfaces(root: Path) -> dict[str, set[str]]:
    """Package → names that others may import."""
    found = (init for name in ROOTS for init in sorted((root / name).glob("*/__init__.py")))
    return {f"{init.parts[-3]}.{init.parts[-2]}": exported(init) for init in found}


def imports(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Line, module and name of each import; the name is empty for ``import module``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.lineno, node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)


def faults(root: Path, path: Path, packages: dict[str, set[str]]) -> Iterator[str]:
    """One line for each import of ``path`` that is not by the interface of a package."""
    own = ".".join(path.relative_to(root).parts[:2])
    for line, module, name in imports(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        package = ".".join(module.split(".")[:2])
        if package == own or package not in packages:
            continue
        if module != package:
            yield f"{path}:{line}: imports {module}, which is internal: import what {package} exports"
        elif name and name not in packages[package]:
            yield f"{path}:{line}: {package} does not export {name}: add it to its __all__, or do without"


def main(root: Path) -> int:
    packages = interfaces(root)
    paths = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    found = [fault for path in paths for fault in faults(root, path, packages)]
    print("\n".join(found) if found else f"{len(paths)} files import {len(packages)} packages by their interfaces")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
