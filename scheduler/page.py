"""Prints the schedule page as one release has it: `python -m scheduler.page 0.16.0`.

Every question after a rule is answered with what the release does, and what is then never reached is left
out. What remains is cut out of the source as it stands, comments included. Another module of this package
can be named behind the version: `python -m scheduler.page 0.33.0 admission`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import dedent, indent

from scheduler.release import Rules, release

_JUMPS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_PURE = (ast.Name, ast.Attribute, ast.Constant, ast.Compare, ast.UnaryOp, ast.BoolOp, ast.BinOp, ast.Load)
_Edit = tuple[int, int, str]
"""First line and line after the last, counted from 0, and what stands there instead."""


def page(version: str, module: str = "scheduler") -> str:
    """The source of a module of this package under the rules of a release.

    `ValueError` if the version is none, `FileNotFoundError` if there is no such source file.
    """
    source = Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
    return fold(source, release(version).rules)


def fold(source: str, rules: Rules) -> str:
    """A module's source with every `rules.name` in it answered."""
    answers: dict[str, bool] = asdict(rules)
    while (edit := _next_edit(source, answers)) is not None:
        first, end, text = edit
        lines = source.splitlines(keepends=True)
        source = "".join([*lines[:first], text, *lines[end:]])
    return source


def _next_edit(source: str, answers: dict[str, bool]) -> _Edit | None:
    """Something that can still be answered or left out; None if there is nothing."""
    tree = ast.parse(source)
    for block in _blocks(tree):
        for place, statement in enumerate(block):
            edit = _answer(statement, source, answers, alone=len(block) == 1)
            if edit is None and isinstance(statement, _JUMPS) and place + 1 < len(block):
                edit = _end(statement), _end(block[-1]), ""
            if edit is not None:
                return edit
    for block in _blocks(tree):
        for statement in block:
            if _is_idle(statement, source):
                return _start(statement, source), _end(statement), ""
    return None


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """Every list of statements, the outer ones first."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block:
                yield block


def _answer(statement: ast.stmt, source: str, answers: dict[str, bool], *, alone: bool) -> _Edit | None:
    """Answer the first question of a statement itself, not of those inside it."""
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, ast.expr):
            continue
        for node in _questions(child, answers):
            answer = _Answers(answers).visit(ast.parse(ast.unparse(node), mode="eval").body)
            if isinstance(statement, ast.If) and node is statement.test and isinstance(answer, ast.Constant):
                return _take_branch(statement, source, taken=bool(answer.value), alone=alone)
            return _replace(node, ast.unparse(answer), source)
    return None


def _questions(node: ast.expr, answers: dict[str, bool]) -> Iterator[ast.expr]:
    """The expressions to be written anew: those in which an answer settles more than the rule itself."""
    if not any(_is_rule(inner, answers) for inner in ast.walk(node)):
        return
    if isinstance(node, (ast.BoolOp, ast.UnaryOp, ast.IfExp)) or _is_rule(node, answers):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield from _questions(child, answers)
        elif isinstance(child, ast.keyword):
            yield from _questions(child.value, answers)


def _is_rule(node: ast.AST, answers: dict[str, bool]) -> bool:
    """Whether this is `rules.name`, or `….rules.name`."""
    if not isinstance(node, ast.Attribute) or node.attr not in answers:
        return False
    owner = node.value
    return (isinstance(owner, ast.Name) and owner.id == "rules") or (
        isinstance(owner, ast.Attribute) and owner.attr == "rules"
    )


class _Answers(ast.NodeTransformer):
    """Puts answers into an expression and works out what follows from them."""

    def __init__(self, answers: dict[str, bool]) -> None:
        self._answers = answers

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """A rule becomes its answer."""
        return ast.Constant(self._answers[node.attr]) if _is_rule(node, self._answers) else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        """Turn `not True` into False, and `not False` into True."""
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not) and isinstance(operand, ast.Constant):
            return ast.Constant(not operand.value)
        return ast.UnaryOp(node.op, operand)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """Only the branch that is taken is left."""
        test = self.visit(node.test)
        if isinstance(test, ast.Constant):
            branch: ast.expr = self.visit(node.body if test.value else node.orelse)
            return branch
        return ast.IfExp(test, self.visit(node.body), self.visit(node.orelse))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """Leave out what changes nothing, and what comes after the deciding value; keep every call before."""
        decides = isinstance(node.op, ast.Or)
        values: list[ast.expr] = []
        for value in map(self.visit, node.values):
            if not isinstance(value, ast.Constant):
                values.append(value)
            elif value.value is decides:
                calls = [i for i, each in enumerate(values) if not _is_pure(each)]
                values = [*values[: calls[-1] + 1 if calls else 0], value]
                break
        if len(values) > 1:
            return ast.BoolOp(node.op, values)
        return values[0] if values else ast.Constant(not decides)


def _is_pure(node: ast.expr) -> bool:
    """Whether it makes no difference if this is worked out."""
    return all(
        isinstance(inner, (*_PURE, ast.operator, ast.unaryop, ast.boolop, ast.cmpop))
        for inner in ast.walk(node)
    )


def _take_branch(statement: ast.If, source: str, *, taken: bool, alone: bool) -> _Edit:
    """Put the branch that is taken in the place of the statement."""
    lines = source.splitlines(keepends=True)
    first, end = statement.lineno - 1, _end(statement)
    header_end, body_end = _end(statement.test), _end(statement.body[-1])
    margin = " " * statement.col_offset
    if lines[first].lstrip().startswith("elif"):
        if taken:
            return first, end, "".join([f"{margin}else:\n", *lines[header_end:body_end]])
        return first, body_end, ""  # what follows belongs to the branch before
    if taken:
        return first, end, indent(dedent("".join(lines[header_end:body_end])), margin)
    if not statement.orelse:
        return first, end, f"{margin}pass\n" if alone else ""
    if lines[body_end].lstrip().startswith("elif"):
        return first, body_end + 1, lines[body_end].replace("elif", "if", 1)
    return first, end, indent(dedent("".join(lines[body_end + 1 : end])), margin)


def _replace(node: ast.expr, text: str, source: str) -> _Edit:
    """Put other text in the place of an expression."""
    lines = source.splitlines(keepends=True)
    first, last = node.lineno - 1, _end(node) - 1
    before = lines[first].encode()[: node.col_offset].decode()
    after = lines[last].encode()[node.end_col_offset or 0 :].decode()
    return first, last + 1, before + text + after


def _is_idle(statement: ast.stmt, source: str) -> bool:
    """Whether nothing uses this private method, or these rules, any more."""
    if isinstance(statement, ast.FunctionDef):
        name = statement.name
        return name.startswith("_") and not name.startswith("__") and source.count(name) == 1
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute):
        return statement.targets[0].attr == "rules" and "rules." not in source
    return False


def _start(statement: ast.stmt, source: str) -> int:
    """The first line of a statement to be left out, the blank lines before it included."""
    lines, first = source.splitlines(), statement.lineno - 1
    while isinstance(statement, ast.FunctionDef) and first and not lines[first - 1].strip():
        first -= 1
    return first


def _end(node: ast.stmt | ast.expr) -> int:
    """The line after its last one, counted from 0."""
    assert node.end_lineno is not None
    return node.end_lineno


def main(arguments: Sequence[str]) -> int:
    """Print the page of the release that the first argument names; returns the exit code."""
    if not 1 <= len(arguments) <= 2:
        sys.stderr.write("usage: python -m scheduler.page VERSION [MODULE]\n")
        return 2
    try:
        sys.stdout.write(page(*arguments))
    except (ValueError, FileNotFoundError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
