"""Mutants of a source text: cosmic-ray's operators, and one that deletes a statement.

Mutants that change nothing but an annotation or the layout are left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator, operator_names
from parso.python.tree import Keyword

# These two replace names by names that a call gives them.
_WITH_ARGUMENTS = ("core/VariableReplacer", "core/VariableInserter")


class DeleteStatement(Operator):
    """Replace an assignment to an attribute or an item, or a call whose result is not used, by `pass`."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        """The statement itself, if it is of these."""
        if node.type == "simple_stmt" and _acts(node.children[0]):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Put `pass` in its place."""
        first = node.get_first_leaf()
        node.children = [Keyword("pass", first.start_pos, first.prefix), *node.children[1:]]
        return node

    @classmethod
    def examples(cls) -> tuple[Any, ...]:
        """None: cosmic-ray only shows them."""
        return ()


def _acts(statement: Any) -> bool:
    if statement.type == "expr_stmt":
        return statement.children[0].type in ("atom_expr", "power")
    return statement.type in ("atom_expr", "power", "await_expr")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of a file: its line (from 1), the line's text before and after, and the whole text after."""

    file: str
    line: int
    operator: str
    before: str
    after: str
    code: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What names the mutant while other lines of the file change."""
        return self.file, self.before, self.after


def mutants_of(file: str, code: str) -> list[Mutant]:
    """Every mutant of a text, in the order of operators and lines; one of each meaning."""
    seen = {_meaning(code)}
    mutants = []
    for name, operator in _operators():
        for occurrence, line in enumerate(_lines(code, operator)):
            changed = mutate_code(code, operator, occurrence)
            meaning = _meaning(changed) if changed else None
            if meaning is None or meaning in seen:
                continue
            seen.add(meaning)
            before, after = _changed_lines(code, changed)
            mutants.append(Mutant(file=file, line=line, operator=name, before=before, after=after, code=changed))
    return mutants


def _operators() -> Iterator[tuple[str, Operator]]:
    yield "DeleteStatement", DeleteStatement()
    for name in operator_names():
        if name not in _WITH_ARGUMENTS:
            yield name.removeprefix("core/"), get_operator(name)()


def _lines(code: str, operator: Operator) -> list[int]:
    return [start[0] for node in ast_nodes(get_ast(code)) for start, _ in operator.mutation_positions(node)]


def _meaning(code: str) -> str | None:
    """The syntax tree without annotations and docstrings; None if it is no Python."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return None
    return ast.dump(_WithoutAnnotations().visit(tree))


class _WithoutAnnotations(ast.NodeTransformer):
    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        node.annotation = ast.Constant(None)
        self.generic_visit(node)
        return node


def _changed_lines(before: str, after: str) -> tuple[str, str]:
    """The first line that differs, before and after."""
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    return next(((old.strip(), new.strip()) for old, new in pairs if old != new), ("", ""))
