"""Objects that a test and its program share: apart they are as they would be in one process, or the verdict is weak."""

from __future__ import annotations

import pytest
from asserting import asserts, holds

from sandbox import Limits, Verdict
from sandbox.judging.judge import Judge

NODES = """
class ListNode:
    def __init__(self, val=0, next=None): self.val, self.next = val, next
class TreeNode:
    next = None
    def __init__(self, val=0, left=None, right=None): self.val, self.left, self.right = val, left, right
class Node:
    def __init__(self, val): self.val, self.to = val, []
    def __hash__(self): return hash(self.val)
    def __eq__(self, other): return type(other) is Node and self.val == other.val
"""
LCA = (
    "def f(root, p, q):\n  if root is None or root is p or root is q: return root\n"
    "  a, b = f(root.left, p, q), f(root.right, p, q)\n  return root if a and b else a or b"
)
TREE = "p, q = TreeNode(5), TreeNode(5)\nroot = TreeNode(5, TreeNode(5, p), q)\n"
MEETS = (
    "def f(a, b):\n  seen = set()\n  while a: seen.add(id(a)); a = a.next\n  while b:\n    if id(b) in seen: return b\n"
    "    b = b.next\n"
)
KEEPS = "class S:\n  def __init__(s, a): s.a = a\n  def get(s): return s.a\n  def add(s, x): s.a.append(x)"
RING = "def f(h):\n  seen = []\n  while h and not any(h is s for s in seen): seen.append(h); h = h.next\n  return h"

SHARED = [  # a right program and a test about values: never weak
    (LCA, TREE + "got = f(root, p, q)\ngot.val = 7\nassert root.val == 7 and root.left.val == 5"),
    (LCA, TREE + "f(root, p, p).val = 8\nassert p.val == 8 and q.val == 5 and root.left.left.val == 8"),
    (MEETS, "c = ListNode(1)\na, b = ListNode(1, c), ListNode(1, c)\nf(a, b).val = 9\nassert (a.val, c.val) == (1, 9)"),
    (RING, "a = ListNode(1)\na.next = ListNode(2, a)\nf(a).val = 3\nassert a.val == 3\nassert f(a.next).val == 2"),
    ("def f(n):\n  seen = {}\n  def go(n):\n    if n in seen: return seen[n]\n    seen[n] = c = Node(n.val)\n"
     "    c.to = [go(m) for m in n.to]\n    return c\n  return go(n)",
     "a, b = Node(1), Node(2)\na.to, b.to = [b], [a]\nc = f(a)\nc.to[0].to[0].val = 5\n"
     "assert (c.val, a.val) == (5, 1)"),
    (KEEPS, "a = [1]\ns = S(a)\ns.get().append(3)\nassert s.get() == [1, 3] == a"),
    (KEEPS, "h = ListNode(1)\ns = S([h])\ns.get()[0].val = 4\nassert h.val == 4"),
    (KEEPS, "from collections import deque\na = deque([1])\ns = S(a)\ns.add(2)\nassert a.pop() == 2\n"
     "assert len(s.get()) == 1"),
    (KEEPS, "from collections import defaultdict\nd = defaultdict(list)\ns = S(d)\nd[3].append(1)\n"
     "assert s.get() == {3: [1]}"),
    ("def f(a): a.append(a)", "a = []\nf(a)\nassert len(a) == 1 == len(a[0])"),
    ("def f(a, x=[]): x.append(a); return x", "assert f(1) == [1]\nb = f(2)\nassert f(3) == [1, 2, 3] == b"),
    ("def f(a):\n  a.append(1)\n  raise ValueError('x')",
     "a = []\ntry: f(a)\nexcept ValueError: pass\nassert a == [1]"),
    ("def f(a):\n  e = KeyError('x', 3)\n  e.code = 5\n  raise e",
     "try: f(1)\nexcept KeyError as e: assert e.code == 5 and e.args == ('x', 3)\nelse: assert False"),
    ("def f(n): return n * [[]]", "a = f(300)\na[7].append(1)\nassert a[299] == [1]"),
    ("def f(n):\n  a = []\n  for _ in range(n): a = [a]\n  return a",
     "a = f(500)\nfor _ in range(500): a = a[0]\nassert a == []"),
    ("class L:\n  def __init__(s, a):\n    s.head = None\n    for v in a: s.head = N(v, s.head)\n"
     "class N:\n  def __init__(s, v, n): s.v, s.n = v, n", "n, t = L([1, 2]).head, 0\nwhile n: t, n = t + n.v, n.n\n"
     "assert t == 3"),
    ("import datetime\ndef f(d): return [d - d, d.replace(year=1999)]",
     "from datetime import datetime, timedelta\n"
     "assert f(datetime(2020, 1, 2)) == [timedelta(0), datetime(1999, 1, 2)]"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "test"), SHARED)
def test_what_is_shared_is_one_object_on_both_sides(judge: Judge, source: str, test: str) -> None:
    assert holds(NODES, source, test)
    name = "S" if "S(" in test else "L" if "L(" in test else "f"
    done = asserts(judge, source, test, preamble=NODES, fn_name=name)
    assert (done.verdict, done.weak) == (Verdict.AC, False)


ALIASED = [  # programs that copy or share where they should not, and tests that see it
    (KEEPS.replace("s.a = a", "s.a = list(a)"), "a = [1]\ns = S(a)\na.append(2)\nassert s.get() == [1, 2]"),
    (KEEPS, "s = S([1])\ns.get().append(2)\nassert s.get() == [1]"),
    ("def f(x): return x", "a = [1]\nb = f(a)\nb.append(2)\nassert a == [1]"),
    ("def f(x): return x", "import copy\na = ListNode(1)\nfor b in [f(a)]: assert b is not a"),
    ("def f(x): return list(x)", "a = [1]\nfor b in [f(a)]: assert b is a"),
    ("def f(x): return x[:]", "a = [[1]]\nb = f(a)\nb[0].append(2)\nassert a == [[1]]"),
    ("def f(n): return [[0] * 2] * 2", "g = f(1)\ng[0][0] = 1\nassert g == [[1, 0], [0, 0]]"),
    ("def f(a, x=[]): x.append(a); return x", "a = f(1)\nf(2)\nassert a == [1]"),
    (LCA.replace("root is p", "root.val == p.val"), TREE + "f(root, p, p).val = 8\nassert root.val == 5"),
]  # fmt: skip


@pytest.mark.promise("asserts")
@pytest.mark.parametrize(("source", "test"), ALIASED)
def test_what_only_one_process_sees_is_not_accepted(judge: Judge, source: str, test: str) -> None:
    assert not holds(NODES, source, test)
    done = asserts(judge, source, test, preamble=NODES, fn_name="S" if "S(" in test else "f")
    assert done.verdict is Verdict.WA


CARRIED = """
from enum import Enum
class Colour(Enum):
    RED = 1
    BLUE = 2
class Rows(list): pass
class Odd:
    def __init__(self): self.show = lambda: 3
"""
HARD = [
    ("def f(x): return Colour.BLUE if x is Colour.RED else 3", "for k in (1,): assert f(Colour.RED) is Colour.BLUE"),
    ("def f(x): return Rows(x)", "for k in (1,): assert f(Rows([k])) == [k]"),
    ("def f(x): return x.show()", "for k in (3,): assert f(Odd()) == k"),
    ("def f(x): return x", "a = [1]\nfor k in (3,): assert f(a) is a"),
    (LCA, TREE + "for k in (3,): assert f(root, p, q) is root and f(root, p, p) is p"),
    (MEETS, "a = ListNode(1)\nfor k in (3,): assert f(ListNode(1, a), a) is a"),
]


@pytest.mark.parametrize(("source", "test"), HARD)
def test_what_cannot_be_carried_is_never_wrong(judge: Judge, source: str, test: str) -> None:
    done = asserts(judge, source, test, preamble=CARRIED + NODES, fn_name="f")
    assert done.verdict is Verdict.AC


SENDS = """
import sys
def f(*a):
    frame = sys._getframe()
    while "writer" not in frame.f_locals: frame = frame.f_back
    frame.f_locals["writer"].write(b'''MESSAGE''' + b"\\n")
    frame.f_locals["writer"].flush()
    return 4
"""
STRAIGHT = "a = [1]\nx = f(a)\nfor k in (1,): assert x == [9] or f(a) == 9"
STUBBORN = "a = [1]\nfor k in (1,):\n  try: x = f(a)\n  except Exception: x = f(a)\n  assert x == 5"
CROWD = ",".join(f'{{"i": "{number * (2**61 - 1):#x}"}}' for number in range(9999))
FORGED_MESSAGES = [
    '["value", [[{"@": 99}], []], []]',  # a number that stands for nothing
    '["value", [[{"@": 2}], [[2, "list", [4]]]], []]',  # one that the test's side gives
    '["value", [[{"@": -1}], [[-1, "list", [4]]]], []]',
    '["value", [[4], [[[1], "list", [4]]]], []]',
    '["value", [[{"@": 1}], [[1, ["list"], [4]]]], []]',
    '["value", [[{"@": 1}], [[1, ".Caller", []]]], []]',
    '["value", [[{"@": 1}], [[1, ".Node", ["__eq__", 4, "__class__", 3]]]], []]',
    '["value", [[{"@": 1}], [[1, ".Node", [3, 4]]]], []]',
    '["value", [[{"@": 1}], [[1, "dict", [{"@": 1}, 3]]]], []]',
    '["value", [[{"@": 1}], [[1, "deque", [1e99]]]], []]',
    '["value", [[{"@": 1}], [[1, "defaultdict", []]]], []]',
    '["value", [[{"@": 1}], [[1, "list", [{"@": 1}]]]], []]',
    '["value", [[{"@": 1}], [[1, "set", [{"@": 1}]]]], []]',
    '["value", [[{"@": 0}], [[0, "dict", []]]], []]',  # the argument is a list
    '["value", [[4], [[0, "list", [1, 2, 3]]]], [0, 7, "x", null]]',
    '["value", [[{"@": 3}], [[3, "list", [{"@": 1}]], [1, "list", []]]], [1]]',
    '["value", [[3], []], null]',
    '["value", [[], []], []]',
    '["value", 3, []]',
    '["value", [[{"N": ["P", ["class", "1"], [1, 2]]}], []], []]',
    '["value", [[{"E": ["Node", "x"]}], []], []]',
    '["value", [[{"V": ["clear", {"@": 1}]}], [[1, "dict", []]]], []]',
    '["value", [[{"V": ["keys", {"@": 1}]}], [[1, "list", []]]], []]',
    '["raise", [[["object"], [], {"d": []}, ""], []], []]',
    '["raise", [[["ValueError"], [], {"d": [["__class__", 3]]}, 3], []], []]',
    '["lost", 3, []]',
    pytest.param('["value", [[' + "[" * 100_000 + "]" * 100_000 + "], []], []]", id="deep"),
    pytest.param('["value", [[' + '{"V":["keys",' * 900 + "3" + "]}" * 900 + "], []], []]", id="views in views"),
    pytest.param('["value", [[{"@": 1}], [[1, "set", [' + CROWD + "]]]], []]", id="one hash"),
]


@pytest.mark.parametrize("message", FORGED_MESSAGES)
def test_a_forged_message_is_a_verdict_on_the_program(judge: Judge, message: str) -> None:
    for test in STRAIGHT, STUBBORN:
        done = asserts(judge, SENDS.replace("MESSAGE", message), test, preamble=NODES, fn_name="f")
        assert done.verdict in (Verdict.WA, Verdict.RE)


@pytest.mark.parametrize(
    ("work", "verdict"),
    [
        ("return [[] for _ in range(10**8)]", (Verdict.TLE, Verdict.MLE)),
        ("held.append([held[-1:] for _ in range(200_000)]); return held[-1]", (Verdict.TLE, Verdict.MLE)),
        ("return [0] * 10**8", (Verdict.TLE, Verdict.MLE)),
    ],
)
def test_objects_without_end_meet_the_limits(judge: Judge, work: str, verdict: tuple[Verdict, ...]) -> None:
    limits = Limits(cpu_s=1, wall_s=20)
    done = asserts(
        judge, f"held = []\ndef f(x): {work}", "for k in range(99): assert f(k) != k", fn_name="f", limits=limits
    )
    assert done.verdict in verdict
