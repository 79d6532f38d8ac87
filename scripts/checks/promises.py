"""Check promises: each row of ``docs/tests.md`` is held by as many tests as it says, by those with its mark.

A test holds a promise by ``@pytest.mark.promise("key")`` on the function or its class, or by the ``pytestmark`` of its
module. ``--list KEY ...`` prints these tests as pytest names them.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DOCUMENT = Path("docs", "tests.md")
ROW = re.compile(r"^\| `(?P<key>[a-z0-9-]+)` \| .+ \| (?P<tests>\d+) \|.*\|$")
"""A row of a table of promises: key, promise, number of tests, and what ``--wide`` adds."""

Mark = tuple[str, tuple[str, ...]]
"""Name of a ``pytest.mark``, and its arguments that are texts."""


@dataclass(frozen=True)
class Holder:
    """A test with the mark: its pytest node id, the keys of the mark, and whether it runs with ``--wide`` only."""

    name: str
    keys: tuple[str, ...]
    wide: bool


def marks(node: ast.expr) -> Iterator[Mark]:
    """Yield the marks that a decorator or the value of a ``pytestmark`` is."""
    if isinstance(node, ast.List | ast.Tuple):
        for each in node.elts:
            yield from marks(each)
        return
    called = node.func if isinstance(node, ast.Call) else node
    if isinstance(called, ast.Attribute) and ast.unparse(called.value) == "pytest.mark":
        arguments = node.args if isinstance(node, ast.Call) else []
        yield called.attr, tuple(a.value for a in arguments if isinstance(a, ast.Constant) and isinstance(a.value, str))


def holders(body: list[ast.stmt], place: str, above: tuple[Mark, ...] = ()) -> Iterator[Holder]:
    """Yield the tests of a module or class that have a mark of a promise, of their own or of what they stand in."""
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            above = (*above, *marks(node.value))
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found = (*above, *(mark for decorator in node.decorator_list for mark in marks(decorator)))
            if isinstance(node, ast.ClassDef):
                yield from holders(node.body, f"{place}::{node.name}", found)
            elif keys := tuple(key for name, texts in found if name == "promise" for key in texts):
                yield Holder(f"{place}::{node.name}", keys, "wide" in dict(found))


def faults(rows: list[tuple[str, int]], found: list[Holder]) -> Iterator[str]:
    """Yield a line for each row that is not held as it says, and for each mark without a row."""
    keys = [key for key, _ in rows]
    for key in sorted({key for key in keys if keys.count(key) > 1}):
        yield f"{DOCUMENT}: {key}: two rows have this key: rename one"
    for holder in found:
        for key in holder.keys:
            if key not in keys:
                yield f"{holder.name}: no row of {DOCUMENT} has the key {key!r}: add one, or correct the mark"
    for key, said in rows:
        held = [holder for holder in found if key in holder.keys]
        told = f"{DOCUMENT}: {key}: {said} tests by its row, {len(held)} with its mark"
        if all(holder.wide for holder in held):
            yield f'{told}, none that runs by default: mark one that holds it, @pytest.mark.promise("{key}")'
        elif len(held) < said:
            yield f"{told}: mark the test that shows now what the missing one did, or lower the number"
        elif len(held) > said:
            yield f"{told}: write {len(held)} into the row"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path, nargs="?", default=Path())
    parser.add_argument("--list", nargs="+", metavar="KEY", default=[], help="print the tests that hold these promises")
    args = parser.parse_args()
    found = list[Holder]()
    for path in sorted((args.root / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        found += holders(tree.body, str(path.relative_to(args.root)))
    if args.list:
        print("\n".join(holder.name for holder in found if set(args.list) & set(holder.keys)))
        return 0
    lines = (args.root / DOCUMENT).read_text(encoding="utf-8").splitlines()
    rows = [(row["key"], int(row["tests"])) for row in map(ROW.match, lines) if row]
    told = [*faults(rows, found)] or ([] if rows else [f"{DOCUMENT}: no table of promises was found"])
    print("\n".join(told) if told else f"{len(rows)} promises, held by {len(found)} tests")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
