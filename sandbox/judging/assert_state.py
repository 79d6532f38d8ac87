"""Decide whether a test sees what only one process has once: two processes would each have their own.

the preamble's state     variables and class attributes that change or are drawn, names that the test binds anew
the interpreter's state  the context of decimals, what an exception was raised from
the test's iterators     the program takes some of the items, and the test goes on with the rest
"""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from collections.abc import Iterator
from typing import Final

from sandbox.judging.assert_names import bound_by, given, loaded, walk

_INTERPRETERS: Final = frozenset(
    {"getcontext", "setcontext", "localcontext", "__cause__", "__context__", "__suppress_context__", "__traceback__"}
    | {"is_", "is_not", "assertIs", "assertIsNot", "issubclass"}
)
_CHANGES: Final = frozenset(
    {"append", "appendleft", "extend", "extendleft", "insert", "remove", "pop", "popleft", "popitem", "clear", "sort"}
    | {"reverse", "rotate", "add", "discard", "update", "setdefault", "intersection_update", "difference_update"}
    | {"symmetric_difference_update", "subtract", "move_to_end"}
)
_MADE_FIXED: Final = frozenset(
    {"int", "float", "str", "bool", "complex", "tuple", "frozenset", "bytes", "range", "len", "max", "min", "ord"}
    | {"namedtuple", "NamedTuple", "TypeVar", "NewType", "Enum", "compile", "Fraction", "Decimal", "object", "pow"}
    | {"partial", "lru_cache", "cmp_to_key", "date", "datetime", "timedelta", "sqrt", "type"}
)
_MADE_CHANGING: Final = frozenset(
    {"list", "dict", "set", "bytearray", "deque", "defaultdict", "Counter", "OrderedDict", "count", "cycle", "iter"}
)
_CHANCE: Final = frozenset(
    {"random", "randint", "randrange", "getrandbits", "uniform", "gauss", "choice", "choices", "sample", "shuffle"}
    | {"secrets", "uuid1", "uuid4", "urandom", "time", "time_ns", "monotonic", "perf_counter", "now", "today", "getpid"}
)
"""Names of functions whose results differ between processes."""
_ITERATORS: Final = frozenset(
    {"iter", "map", "filter", "zip", "reversed", "enumerate", "count", "cycle", "repeat", "chain", "islice"}
    | {"accumulate", "starmap", "takewhile", "dropwhile", "product", "permutations", "combinations", "pairwise"}
)


def needs_one_process(whole: list[ast.stmt], above: list[ast.stmt]) -> bool:
    """Return whether two processes would differ from one. `above`: the preamble."""
    return bool(words(*whole) & _INTERPRETERS) or _shares_state(whole, above) or _goes_on(walk(*whole))


def words(*parts: ast.AST) -> set[str]:
    """Names that these use, of whatever it is."""
    return {name for node in walk(*parts) for name in _words_of(node)}


def _words_of(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
            yield name


def _shares_state(whole: list[ast.stmt], above: list[ast.stmt]) -> bool:
    plain = [node for node in above if not isinstance(node, ast.Import | ast.ImportFrom)]
    bound = set().union(*map(_bound_at_top, plain))
    if bound & set().union(*map(_bound_at_top, whole)):  # the program uses the test's
        return True
    nodes = walk(*above, *whole)
    state = {name for node in nodes for name in _changed_by(node)} & bound
    for node in plain:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and not (
            _is_fixed(node.value) and _CHANCE.isdisjoint(words(node))
        ):
            state |= bound_by(node)
    reached = walk(*_reached(whole, plain))
    used = {node.id for node in reached if isinstance(node, ast.Name)}
    used |= {name for node in reached if isinstance(node, ast.Global) for name in node.names}
    return bool(state & used) or _shares_attributes(nodes, reached, plain)


def _shares_attributes(nodes: list[ast.AST], reached: list[ast.AST], above: list[ast.stmt]) -> bool:
    """Return whether an attribute is used that a class has, and not its object, and that may change."""
    classes = {node.name: node for node in above if isinstance(node, ast.ClassDef)}
    state = {name for cls in classes.values() for name in _changing_attributes(cls)}
    state |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and _is_of_class(node, classes)}
    return any(isinstance(node, ast.Attribute) and node.attr in state for node in reached)


def _bound_at_top(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return set()
    inner = [part.target for part in ast.walk(node) if isinstance(part, ast.comprehension)]
    return bound_by(node) - {name.id for part in inner for name in ast.walk(part) if isinstance(name, ast.Name)}


def _reached(whole: list[ast.stmt], above: list[ast.stmt]) -> list[ast.stmt]:
    """The test, and what it calls of the preamble: functions and classes by name, methods by theirs."""
    made = [node for node in above if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    found = list(whole)
    for part in found:  # which grows meanwhile
        used = loaded(part) | {node.attr for node in ast.walk(part) if isinstance(node, ast.Attribute)}
        for node in made:
            own = {node.name, *(inner.name for inner in ast.walk(node) if isinstance(inner, ast.FunctionDef))}
            if node not in found and own & used:
                found.append(node)
    return found


def _changed_by(node: ast.AST) -> Iterator[str]:
    """Names whose objects a statement changes in place, or that a function binds outside itself."""
    if isinstance(node, ast.Global):
        yield from node.names
    owner: ast.AST | None = None
    if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
        owner = node.value
    elif isinstance(node, ast.AugAssign):
        owner = node.target
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
        owner = node.func.value
    while isinstance(owner, ast.Attribute | ast.Subscript):
        owner = owner.value
    if isinstance(owner, ast.Name):
        yield owner.id


def _is_fixed(value: ast.expr | None) -> bool:
    """Return whether a variable's value cannot change in place, or is a table that no code is seen to change."""
    match value:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in _MADE_FIXED
        case ast.List(elts=[]) | ast.Dict(keys=[]):
            return False
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items) | ast.Dict(values=items):
            return all(map(_is_fixed, items))
        case ast.UnaryOp(operand=inner):
            return _is_fixed(inner)
        case ast.BinOp(left=left, right=right):
            return _is_fixed(left) and _is_fixed(right)
    return value is None or isinstance(value, ast.Constant | ast.Lambda | ast.Name | ast.Attribute | ast.JoinedStr)


def _changing_attributes(cls: ast.ClassDef) -> Iterator[str]:
    for node in cls.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            match node.value:
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name not in _MADE_CHANGING:
                    pass
                case ast.Call() | ast.ListComp() | ast.DictComp() | ast.SetComp() | ast.List() | ast.Dict() | ast.Set():
                    yield from (name for name in bound_by(node) if name[:2] != "__")


def _is_of_class(node: ast.Attribute, classes: dict[str, ast.ClassDef]) -> bool:
    """Return whether an attribute of a class is set, or read where the class itself does not define it."""
    match node.value:
        case ast.Name(id=name) if name in classes and isinstance(node.ctx, ast.Load):
            own = {inner for part in classes[name].body for inner in bound_by(part)}
            return not classes[name].bases and node.attr not in own and node.attr[:2] != "__"
        case ast.Name(id=name):
            return not isinstance(node.ctx, ast.Load) and (name in classes or (name == "cls" and bool(classes)))
        case ast.Call(func=ast.Name(id="type")) | ast.Attribute(attr="__class__"):
            return not isinstance(node.ctx, ast.Load)
    return False


def _goes_on(nodes: list[ast.AST]) -> bool:
    """Return whether an iterator of the test's is an argument, and has a name that is used more than once."""
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    makers = {
        made.name for made in functions if any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in ast.walk(made))
    }
    calls = [node for node in nodes if isinstance(node, ast.Call) and not _is_of_builtins(node.func)]
    passed = {arg.id for call in calls for arg in given(call) if isinstance(arg, ast.Name)}
    uses = Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.GeneratorExp | ast.Call):
            made = isinstance(node.value, ast.GeneratorExp) or (makers | _ITERATORS) & set(_words_of(node.value.func))
            if made and any(uses[name] > 1 for name in bound_by(node) & passed):
                return True
    return False


def _is_of_builtins(func: ast.expr) -> bool:
    return isinstance(func, ast.Name) and func.id in vars(builtins)
