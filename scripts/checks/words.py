"""Check the words of docstrings, comments, messages and documents: plain standard English.

A docstring begins with a verb or a noun. A word of ``INSTEAD`` is refused with what to write in its place.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

FOLDERS = ("overlap", "sandbox", "recipes")
PAGES = ("README.md", "docs/**/*.md", "sandbox/*.md", "recipes/**/*.md")
INSTEAD = {
    r"told": "reported, given, passed, named",
    r"tells? of": "reports, names",
    r"stands": "is, holds",
    r"nobody": "no caller, no process, no user",
    r"those that|those who": "the NOUN that",
    r"lies|lie there": "is, is stored",
    r"so many|so much": "this many, at most N",
    r"is of no account": "does not matter",
    r"what for": "purpose",
}
"""A pattern, whole words: what to write."""
FIRST = re.compile(r"(What|Whether|How|Who|Where|When|Why|If|That|Those|This|It|Of|So|For|And|But|Is|Are|Here|There)\b")
"""First words that a docstring may not have."""
WORDS = {re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])", re.IGNORECASE): write for pattern, write in INSTEAD.items()}


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring: of modules, classes, functions, and of names (a text behind them)."""
    for node in ast.walk(tree):
        statements = getattr(node, "body", [])
        for statement in statements if isinstance(statements, list) else []:
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement.lineno, value.value


def messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string of more than one word. Docstrings are among them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each comment."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def refused(path: Path, texts: Iterable[tuple[int, str]]) -> Iterator[str]:
    """Yield a line for each word that is refused."""
    for line, text in texts:
        for pattern, write in WORDS.items():
            if found := pattern.search(text):
                yield f"{path}:{line}: {found[0]!r}: {write}"


def faults(path: Path) -> Iterator[str]:
    """Yield a line for each word and each beginning that is refused in a module or a page."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from refused(path, enumerate(source.splitlines(), 1))
        return
    tree = ast.parse(source, filename=str(path))
    for line, text in docstrings(tree):
        if found := FIRST.match(text.strip()):
            yield f"{path}:{line}: begins with {found[0]!r}: begin with a verb, or name the thing"
    yield from refused(path, [*messages(tree), *comments(source)])


def main(root: Path) -> int:
    paths = [path for folder in FOLDERS for path in (root / folder).rglob("*.py")]
    paths += [path for page in PAGES for path in root.glob(page)]
    found = [fault for path in sorted(paths) for fault in faults(path)]
    print("\n".join(found or [f"{len(paths)} files in plain words"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
