"""What may stand for a value or for an object of the preamble's, and what objects of the preamble's cannot carry: weak.

Each program here passes its test in plain Python. A hostile one must not be accepted as strongly as one that computes
what is asked; an honest one must be accepted.
"""

from __future__ import annotations

import pytest
from asserting import TWO_FACED, asserts, holds
from tiers import jail_of
from wide import wide

from sandbox import Verdict
from sandbox.judging.judge import Judge

tiered_jail = jail_of("A", wide("B"))  # what an assert is about crosses in one way in both

ABOVE = """
import abc, collections, enum, functools, typing
class Node:
    def __init__(self, val=0, next=None): self.val, self.next = val, next
    def same(self, other): return self.val == other.val and self.next is other.next is None
    def valid(self): return self.val > 100
    @property
    def big(self): return self.val > 100
    def __call__(self, k): return self.val * k
class Pair:
    def __init__(self, a, b): self.a, self.b = a, b
    def swap(self): return Pair(self.b, self.a)
class Row(typing.NamedTuple):
    x: int
    def far(self, k): return self.x > k
class Fault(Exception):
    def fatal(self): return self.args == ("fatal",)
class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...
"""
YES = "lambda *a, **k: True"
OWN = f"class Own:\n  val, next, a = 3, None, 1\n  same = valid = far = fatal = swap = compare = {YES}\n"
RETURNS = "from collections import defaultdict, namedtuple\nimport collections\n" + OWN + "def f(*a): return {}"
RAISES = f"class Fault2(Fault): code = 1\n{OWN}def f(*a):\n  e = {{}}; raise e"
CAUGHT = "import queue\ntry: f(1)\nexcept Exception as e: assert {}\nelse: assert False"
HOSTILE = [  # what `f` returns, and the question that it answers itself
    (f"namedtuple('N', 'startswith')({YES})", "f(1).startswith('a')"),
    ("namedtuple('N', 'startswith')(bool)", "f(1).startswith('a')"),
    ("namedtuple('N', 'replace')(lambda a, b: b)", "f(1).replace('x', k) == k"),
    (f"Pair(namedtuple('N', 'isdigit')({YES}), 1)", "f(1).a.isdigit()"),
    ("namedtuple('N', 'big')(True)", "f(1).big"),
    (f"[{YES}]", "f(1)[0](k)"),
    (f"{{1: ({YES},)}}", "f(1)[k][0](k)"),
    ("[Own()]", "f(1)[0].valid(k)"),
    ("defaultdict(lambda: 9)", "f(1)[k] == 9"),
    (f"Pair(1, {YES})", "f(1).b(k)"),
    ("(p := Pair(1, 2), setattr(p, 'startswith', bool))[0]", "f(1).startswith('a')"),
    ("(p := Pair(1, 2), setattr(p, 'big', True))[0]", "f(1).big"),
    ("(n := Node(1), setattr(n, 'valid', lambda: True))[0]", "f(1).valid()"),
    ("Own()", "f(1).same(Node(2))"),
    ("Own()", "f(1).val == 3 and f(1).valid()"),
    ("Own()", "f(1).far(k)"),
    ("Own()", "f(1).compare(k)"),
    ("lambda *a: 3", "f(1)(k) == 3"),  # as an object of Node's, which can be called
    ("iter([Own()])", "next(f(1)).valid()"),
    ("type('Sub', (Node,), {'p': property(len), 'same': Own.same})(1)", "f(1).same(Node(2))"),
    ("type('Sub', (Node,), {'same': Own.same})(1)", "f(1).same(Node(2))"),
    ("type('Node', (), {'__new__': lambda *a: Own()})()", "f(1).same(Node(2))"),
]
HOSTILE_ERRORS = [
    ("ValueError(Own())", "e.args[0].valid()"),
    ("ValueError(1); e.matches = Own.valid", "e.matches('x')"),
    ("ValueError(1); e.matches = bool", "e.matches('x')"),
    ("ValueError(1); e.errors = [Own()]", "e.errors[0].valid()"),
    ("ValueError(bool)\n  e.args = (lambda k: True,)", "e.args[0](3)"),
    ("ExceptionGroup('', [type('G', (KeyError,), {'get': Own.valid})()])", "e.exceptions[0].get(3)"),
    ("Fault(1); e.fatal = Own.valid", "e.fatal()"),
    ("type('Own2', (Exception,), {'fatal': Own.valid})()", "e.fatal()"),
]
HOSTILE_ROWS = [(RETURNS.format(made), f"for k in (1,): assert {asked}") for made, asked in HOSTILE]
HOSTILE_ROWS += [(RAISES.format(made), CAUGHT.format(asked)) for made, asked in HOSTILE_ERRORS]


@pytest.mark.parametrize(("source", "test"), HOSTILE_ROWS)
def test_what_answers_for_a_value_or_an_object_of_the_preambles_is_not_believed(
    tiered_judge: Judge, source: str, test: str
) -> None:
    assert holds(ABOVE, source, test)
    done = asserts(tiered_judge, source, test, preamble=ABOVE, fn_name="f")
    assert done.verdict is not Verdict.AC or done.weak


HONEST = [
    ("namedtuple('N', 'add')(lambda a, b: a + b)", "f(1).add(2, k) == 3 and isinstance(f(1), tuple)", True),
    ("namedtuple('N', 'x y')(1, [2])", "f(1).x == 1 and f(1) == (1, [2])", False),
    ("{'len': len}", "f(1)['len']('abc') == 3", False),
    ("defaultdict(int, {1: 2})", "f(1)[1] == 2 and f(1)[5] == 0", False),
    ("[Own(), Own()]", "[x.val for x in f(1)] == [3, 3]", False),
    ("lambda: (lambda: 3)", "f(1)()() == 3", True),  # for objects of Node's can be called
    ("Node(200)", "f(1).valid() and f(1).big and f(1).same(Node(200)) and f(1)(2) == 400", False),
    ("Pair(int, len).swap()", "f(1).b is int and f(1).a('abc') == 3", False),
    ("Row(3)", "f(1).far(2) and not f(1).far(3)", False),
    ("Fault('fatal')", "isinstance(f(1), Fault) and f(1).fatal()", True),
    ("type('Sub', (Node,), {'p': property(len)})(1)", "isinstance(f(1), Node) and f(1).val == k", True),
    ("type('Sub', (Node,), {'more': lambda s: s.val + 1})(1)", "f(1).more() == 2 and f(1).val == k", True),
    ("type('Square', (Shape,), {'area': lambda s: 9})()", "f(1).area() == 9", True),
]
HONEST_ERRORS = [
    ("Fault('fatal'); e.extra = [1]", "e.fatal() and e.extra == [1]", False),
    ("Fault2('fatal')", "e.fatal() and e.code == 1", False),
    ("ValueError(1); e.get = lambda: 5", "e.get() == 5", True),
    ("ValueError(Own())", "e.args[0].val == 3", False),
    ("OSError(2, 'no', 'name')", "e.filename == 'name' and e.args == (2, 'no')", False),
    ("ImportError('no', name='numpy')", "e.name == 'numpy'", False),
    ("__import__('queue').Empty(1)", "isinstance(e, queue.Empty)", False),
    ("ExceptionGroup('two', [ValueError(1), KeyError(2)])", "[x.args for x in e.exceptions] == [(1,), (2,)]", False),
    ("type('Worse', (Fault,), {'fatal': lambda e: True})(1)", "e.fatal() and e.args == (1,)", True),
]
HONEST_ROWS = [(RETURNS.format(made), f"for k in (1,): assert {asked}", weak) for made, asked, weak in HONEST]
HONEST_ROWS += [(RAISES.format(made), CAUGHT.format(asked), weak) for made, asked, weak in HONEST_ERRORS]


@pytest.mark.parametrize(("source", "test", "weak"), HONEST_ROWS)
def test_what_is_honest_is_accepted_weakly_only_where_it_might_answer_for_another(
    tiered_judge: Judge, source: str, test: str, weak: bool
) -> None:
    assert holds(ABOVE, source, test)
    done = asserts(tiered_judge, source, test, preamble=ABOVE, fn_name="f")
    assert (done.verdict, done.weak) == (Verdict.AC, weak), done.cases


EQUALS = "lambda s, o: s.v == getattr(o, 'v', o)"
OBJECT = "  def __init__(s, v): s.v = v\n  __hash__ = None\n"
KINDS = [  # how the preamble makes K, what is made of it, and what that equals
    ("class K(list): pass", "[1]", "[1]"),
    ("class K(dict): pass", "{1: 2}", "{1: 2}"),
    ("class K(str): pass", "'a'", "'a'"),
    ("class K(float): pass", "1.5", "1.5"),
    ("from fractions import Fraction\nclass K(Fraction): pass", "1, 2", "0.5"),
    ("K = type('K', (list,), {})", "[1]", "[1]"),
    ("def make():\n  class Inner(list): pass\n  return Inner\nK = make()", "[1]", "[1]"),
    (f"def op():\n  return {EQUALS}\nclass K:\n{OBJECT}  __eq__ = op()", "3", "3"),
    (f"class K:\n{OBJECT}setattr(K, '__eq__', {EQUALS})", "3", "3"),
    (f"class M(type):\n  def __init__(c, *a): c.__eq__ = {EQUALS}\nclass K(metaclass=M):\n{OBJECT}", "3", "3"),
    (f"class K:\n  __new__ = lambda c, v: object.__new__(c)\n{OBJECT}  __eq__ = {EQUALS}", "3", "3"),
    ("import enum\nK = enum.Enum('K', 'A')", "1", "K.A"),
]


@pytest.mark.parametrize(
    "test", ["assert f(1) == WANT", "for k in (1,): assert [f(k)] == [WANT] and isinstance(f(k), K)"]
)
@pytest.mark.parametrize(("above", "made", "want"), KINDS)
def test_an_object_of_the_preambles_is_what_it_is_or_weak_and_never_wrong(
    tiered_judge: Judge, above: str, made: str, want: str, test: str
) -> None:
    source, test = f"def f(n): return K({made})", test.replace("WANT", want)
    assert holds(above, source, test)
    assert asserts(tiered_judge, source, test, "assert True or f(2)", preamble=above, fn_name="f").verdict is Verdict.AC
    false = asserts(tiered_judge, source, test.replace(want, "(8, 8)"), preamble=above, fn_name="f")
    assert false.verdict is Verdict.WA
    own = "class A:\n  __eq__ = lambda s, o: True\n  __class__ = property(lambda s: K)\ndef f(n): return A()"
    other = asserts(tiered_judge, own, test, preamble=above, fn_name="f")
    assert other.verdict is not Verdict.AC or other.weak


def test_where_no_object_of_the_preambles_can_be_a_value_none_makes_a_judgement_weak(judge: Judge) -> None:
    above = "class Node:\n  def __init__(s, val=0, next=None): s.val, s.next = val, next\nclass Low(Exception): pass"
    lies = TWO_FACED.format(apart="return Sub()").replace("in names", "in names or True")
    source = f"class Sub(Node):\n  p = property(len)\n  __eq__ = lambda s, o: True\n{lies}"
    done = asserts(judge, source, "assert f(1) == 4", preamble=above, fn_name="f")
    assert (done.verdict, done.weak) == (Verdict.WA, False)
