"""Patterns find code by what it says, however it is set."""

from __future__ import annotations

import ast

import pytest

from tests.mutation.patterns import Edit, Module, changed


@pytest.mark.parametrize(
    ("source", "edit", "after", "places"),
    [
        ("x = min(\n    a.b,  # why\n    left)", Edit("min(__a, left)", "__a"), "x = a.b", 1),
        ("if a and b + 1 >= c:\n    d()", Edit("b + 1 >= c", "b >= c"), "if a and b >= c:\n    d()", 1),
        ("f(a, a)\nf(a, b)", Edit("f(__x, __x)", "g(__x)"), "g(a)\nf(a, b)", 1),
        ("if a:\n    b()\n    c()\n    d()", Edit("b()\nc()", "c()"), "if a:\n    c()\n    d()", 1),
        ("if a:\n    x -= 1", Edit("x -= 1", "x -= 0"), "if a:\n    x -= 0", 1),
        ("def f():\n    g\ndef h():\n    g", Edit("g", "k", "h"), "def f():\n    g\n\ndef h():\n    k", 1),
        ("class A:\n    def f(self):\n        return 1\n    def g(self):\n        return 1",
         Edit("return 1", "return 2", "A.g"),
         "class A:\n\n    def f(self):\n        return 1\n\n    def g(self):\n        return 2", 1),
        ("g(g(a))", Edit("g(__x)", "h(__x)"), "h(h(a))", 2),
        ("for a in b:\n    f(a)", Edit("for __x in b:\n    f(__x)", "for __x in c:\n    g(__x)"),
         "for a in c:\n    g(a)", 1),
        ("a = b", Edit("c", "d"), "a = b", 0),
    ],
)  # fmt: skip
def test_what_looks_like_the_pattern_is_changed(source: str, edit: Edit, after: str, places: int) -> None:
    tree = ast.parse(source)
    assert len(Module(tree).places(edit)) == places
    assert ast.unparse(changed(tree, [edit])) == after
