"""Changes code by its syntax tree: a pattern finds what a rule says, wherever it stands, however it is set.

A pattern is Python source, an expression or statements, in which a name that begins with two underscores
stands for any expression, for the same one wherever it comes again:

    Edit("min(self._capped(__tokens), __left)", "min(__tokens, __left)")

`where` names the function or class (`Scheduler.schedule`) that is changed, if others have the pattern too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

Found = dict[str, ast.AST]


@dataclass(frozen=True)
class Edit:
    """Every place that looks like `old` becomes `new`, with what the names with two underscores stood for."""

    old: str
    new: str
    where: str = ""


def changed(source: str, edits: Sequence[Edit]) -> tuple[ast.Module, list[int]]:
    """The syntax tree of a module with the edits made, and how many places each edit has changed."""
    tree, counts = ast.parse(source), []
    for edit in edits:
        change = _Change(_parsed(edit.old), _parsed(edit.new))
        for part in _parts(tree, edit.where):
            change.visit(part)
        counts.append(change.count)
    return ast.fix_missing_locations(tree), counts


def places(package: Path, edits: Sequence[Edit]) -> Mapping[Path, list[int]]:
    """The modules in which any of the edits changes something, each with its number of places by edit."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        counts = changed(path.read_text(encoding="utf-8"), edits)[1]
        if any(counts):
            found[path] = counts
    return found


def _parsed(text: str) -> ast.expr | list[ast.stmt]:
    body = ast.parse(text).body
    if len(body) == 1 and isinstance(body[0], ast.Expr):
        return body[0].value
    return body


def _parts(tree: ast.Module, where: str) -> Iterator[ast.AST]:
    """The definitions that `where` names, the whole module if it names none."""
    nodes: list[ast.AST] = [tree]
    for name in filter(None, where.split(".")):
        nodes = [
            child
            for node in nodes
            for child in ast.walk(node)
            if isinstance(child, (ast.ClassDef, ast.FunctionDef)) and child.name == name
        ]
    yield from nodes


class _Change(ast.NodeTransformer):
    def __init__(self, old: ast.expr | list[ast.stmt], new: ast.expr | list[ast.stmt]) -> None:
        self._old, self._new = old, new
        self.count = 0

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(self._old, list):
            for field in ("body", "orelse", "finalbody"):
                statements = getattr(node, field, None)
                if isinstance(statements, list):
                    setattr(node, field, self._statements(statements))
            return node
        found: Found = {}
        if isinstance(node, ast.expr) and _matches(self._old, node, found):
            self.count += 1
            assert isinstance(self._new, ast.expr)
            return _filled(self._new, found)
        return node

    def _statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        assert isinstance(self._old, list)
        at, result = 0, []
        while at < len(body):
            found: Found = {}
            group = body[at : at + len(self._old)]
            if len(group) == len(self._old) and all(
                _matches(old, statement, found) for old, statement in zip(self._old, group, strict=True)
            ):
                self.count += 1
                new = self._new if isinstance(self._new, list) else [ast.Expr(self._new)]
                result += [_filled(statement, found) for statement in new]
                at += len(group)
            else:
                result.append(body[at])
                at += 1
        return result


def _is_any(node: object) -> bool:
    return isinstance(node, ast.Name) and node.id.startswith("__")


def _matches(old: object, node: object, found: Found) -> bool:
    """Whether a node looks like the pattern; `found` is told what stands for its names."""
    if _is_any(old):
        assert isinstance(old, ast.Name)
        if not isinstance(node, ast.expr):
            return False
        return ast.dump(found.setdefault(old.id, node)) == ast.dump(node)
    if type(old) is not type(node):
        return False
    if isinstance(old, ast.AST):
        fields = [name for name in old._fields if name not in ("ctx", "type_comment", "kind")]
        return all(_matches(getattr(old, name), getattr(node, name), found) for name in fields)
    if isinstance(old, list):
        assert isinstance(node, list)
        return len(old) == len(node) and all(_matches(a, b, found) for a, b in zip(old, node, strict=True))
    return old == node


def _filled(new: ast.AST, found: Found) -> ast.AST:
    """The new code with what the pattern's names stood for."""

    class Fill(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:  # ast calls it so
            return deepcopy(found[node.id]) if _is_any(node) else node

    return Fill().visit(deepcopy(new))
