"""Mutants of a source text: cosmic-ray's operators, and one that deletes a statement.

Mutants are left out that change only an annotation, the layout, how arguments may be written, or what guards the next
editor (`frozen` and `slots` of a dataclass, `abstractmethod`).
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
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

# `is` in place of `==` and the reverse seldom changes anything, and an order of what `is` compares always raises: the
# first are mutants that no test can notice, the second such as any test notices.
_OF_IDENTITY = re.compile(r"core/ReplaceComparisonOperator_((Is|IsNot)_(?!Is).*|(Eq|NotEq|Lt|LtE|Gt|GtE)_(Is|IsNot))")


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

    @property
    def family(self) -> str:
        """What the operator replaces, such as `ReplaceComparisonOperator`."""
        return self.operator.partition("_")[0]


class SourceFile:
    """A source text and its mutants."""

    def __init__(self, file: str, code: str) -> None:
        self.file = file
        self.code = code
        self._positions: defaultdict[int, list[tuple[str, Operator, int]]] = defaultdict(list)
        nodes = list(ast_nodes(get_ast(code)))
        for name, operator in _operators():
            starts = (start for node in nodes for start, _ in operator.mutation_positions(node))
            for occurrence, (line, _) in enumerate(starts):
                self._positions[line].append((name, operator, occurrence))

    def lines(self) -> list[int]:
        """The lines with something to change, if only an annotation."""
        return sorted(self._positions)

    def mutants(self, line: int) -> list[Mutant]:
        """Every mutant of a line, one of each meaning."""
        seen = {_meaning(self.code)}
        mutants = []
        for name, operator, occurrence in self._positions[line]:
            changed = mutate_code(self.code, operator, occurrence)
            meaning = _meaning(changed) if changed else None
            if changed is None or meaning is None or meaning in seen:
                continue
            seen.add(meaning)
            before, after = _changed_lines(self.code, changed)
            mutants.append(Mutant(file=self.file, line=line, operator=name, before=before, after=after, code=changed))
        return mutants


def _operators() -> Iterator[tuple[str, Operator]]:
    yield "DeleteStatement", DeleteStatement()
    for name in operator_names():
        if name not in _WITH_ARGUMENTS and not _OF_IDENTITY.fullmatch(name):
            yield name.removeprefix("core/"), get_operator(name)()


def _meaning(code: str) -> str | None:
    """What a text does; None if it is no Python."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return None
    return ast.dump(_WithoutAnnotations().visit(tree))


class _WithoutAnnotations(ast.NodeTransformer):
    """Forgets annotations and what only guards the next editor: frozen records and abstract methods."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_arguments(self, node: ast.arguments) -> ast.arguments:
        """Forget `*` and `/` of a signature, which cosmic-ray takes for operators."""
        self.generic_visit(node)
        node.args = [*node.posonlyargs, *node.args, *node.kwonlyargs]
        node.defaults = [default for default in (*node.defaults, *node.kw_defaults) if default]
        node.posonlyargs, node.kwonlyargs, node.kw_defaults = [], [], []
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        node.decorator_list = [each for each in node.decorator_list if ast.unparse(each) != "abstractmethod"]
        self.generic_visit(node)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        for each in node.decorator_list:
            if isinstance(each, ast.Call) and ast.unparse(each.func) == "dataclass":
                each.keywords = [word for word in each.keywords if word.arg not in ("frozen", "slots")]
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        node.annotation = ast.Constant(None)
        self.generic_visit(node)
        return node if node.value else ast.Pass()


def _changed_lines(before: str, after: str) -> tuple[str, str]:
    """The first line that differs, before and after; empty lines do not count."""
    lines = ([line.strip() for line in text.splitlines() if line.strip()] for text in (before, after))
    return next(((old, new) for old, new in zip(*lines, strict=False) if old != new), ("", ""))
