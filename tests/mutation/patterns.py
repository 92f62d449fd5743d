"""Changes code by its syntax tree: a pattern finds what a rule says, wherever it stands, however it is set.

A pattern is Python source, an expression or statements, in which a name that begins with two underscores
stands for any expression, for the same one wherever it comes again:

    Edit("min(self._capped(__tokens), __left)", "min(__tokens, __left)")
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass

Found = dict[str, ast.AST]
"""What the pattern's names stand for."""


@dataclass(frozen=True)
class Edit:
    """Every place that looks like `old` becomes `new`, with what the names with two underscores stood for.

    `where`: the class or function (`Scheduler.schedule`) outside which nothing is changed. `places`: in how
    many places the code looks like `old`.
    """

    old: str
    new: str
    where: str = ""
    places: int = 1


@dataclass(frozen=True)
class _Slot:
    """A node of the tree: the field of its parent that holds it, and its place if that is a list."""

    parent: ast.AST
    field: str
    place: int | None
    scope: str
    """The classes and functions around it, `.Scheduler.schedule.`."""

    def group(self, length: int) -> list[ast.AST]:
        """The node and those that follow it in its list, so many in all or fewer."""
        held = getattr(self.parent, self.field)
        return [held] if self.place is None else held[self.place : self.place + length]

    def put(self, nodes: list[ast.AST], length: int) -> None:
        """Replace so many nodes."""
        if self.place is None:
            setattr(self.parent, self.field, nodes[0])
        else:
            getattr(self.parent, self.field)[self.place : self.place + length] = nodes


class Module:
    """A module's syntax tree, with its nodes listed by kind."""

    def __init__(self, tree: ast.Module) -> None:
        self._slots: dict[type[ast.AST], list[_Slot]] = defaultdict(list)
        self._list(tree, ".")

    def _list(self, node: ast.AST, scope: str) -> None:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            scope = f"{scope}{node.name}."
        for field, value in ast.iter_fields(node):
            for place, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(child, ast.AST):
                    self._slots[type(child)].append(_Slot(node, field, place, scope))
                    self._list(child, scope)

    def places(self, edit: Edit) -> list[_Slot]:
        """Where the code looks like the pattern, inner places after those around them."""
        old, where = _parsed(edit.old), f".{edit.where}." if edit.where else ""
        slots = self._slots[type(old[0])]
        return [slot for slot in slots if where in slot.scope and _match(old, slot.group(len(old)), {})]


def changed(tree: ast.Module, edits: Iterable[Edit]) -> ast.Module:
    """The same tree with the edits made, one after another."""
    for edit in edits:
        old, new = _parsed(edit.old), _parsed(edit.new)
        if isinstance(old[0], ast.stmt):
            new = ast.parse(edit.new).body
        for slot in reversed(Module(tree).places(edit)):
            found: Found = {}
            _match(old, slot.group(len(old)), found)
            slot.put([_Filler(found).visit(deepcopy(node)) for node in new], len(old))
    return ast.fix_missing_locations(tree)


def _parsed(text: str) -> list[ast.expr] | list[ast.stmt]:
    """The expression or the statements of a pattern; a call alone is an expression."""
    body = ast.parse(text).body
    if len(body) == 1 and isinstance(body[0], ast.Expr):
        return [body[0].value]
    return body


def _match(old: object, node: object, found: Found) -> bool:
    """Whether a node looks like the pattern; `found` is told what stands for its names."""
    if isinstance(old, ast.Name) and old.id.startswith("__"):
        return isinstance(node, ast.expr) and (
            _match(found[old.id], node, {}) if old.id in found else found.setdefault(old.id, node) is node
        )
    if type(old) is not type(node):
        return False
    if isinstance(old, ast.AST):
        fields = [name for name in old._fields if name not in ("ctx", "type_comment", "kind")]
        return all(_match(getattr(old, name), getattr(node, name), found) for name in fields)
    if isinstance(old, list) and isinstance(node, list):
        return len(old) == len(node) and all(_match(a, b, found) for a, b in zip(old, node, strict=True))
    return old == node


class _Filler(ast.NodeTransformer):
    """Puts what was found in the place of a pattern's names."""

    def __init__(self, found: Found) -> None:
        self._found = found

    def visit_Name(self, node: ast.Name) -> ast.AST:  # ast calls it so
        if node.id not in self._found:
            return node
        filled = deepcopy(self._found[node.id])
        if hasattr(filled, "ctx"):
            filled.ctx = node.ctx
        return filled
