"""Every hint of the sources, and which of them a test has followed.

A hint is a text that stands for `hint=` in a call, is assigned to a name with "hint" in it (tables of hints too), is
returned by a function with such a name, or is what `did_you_mean` says when nothing is similar. What is filled in when
the message is made stands as `{}`.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

SHOWS_CODE = re.compile(r"[`=\[]|\w\(|'|(^|\s)--?\w|\w_|\w\.\w|\b(python|pip|anyaccel|nox) |\bleave \w+ out\b")
"""Code, a call, an argument, a quoted value, a command, an option, a name of several words or a dotted one."""

NAMES_OF_CODE = re.compile(r"(\w+)(?=\()|(\w+)(?==(?!=))|(?<![\w-])(--[\w-]+)|\b([A-Z]+(?:_[A-Z]+)+)\b")
"""What a test of a hint must name where it follows the hint: calls, keywords, options, variables."""

TABLES = re.compile("hint|misplaced_settings|OTHER_NAMES", re.IGNORECASE)
"""Names of tables and variables that hold hints."""


@dataclass(frozen=True)
class Hint:
    """One text of a hint in the sources."""

    text: str
    file: str
    line: int

    @property
    def shows_code(self) -> bool:
        return bool(SHOWS_CODE.search(self.text.replace("{}", "")))

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Followed:
    """One `with hint(TEXT):` of a test, and the source of what follows it in the same function."""

    text: str
    after: str
    place: str

    def names_left_out(self) -> list[str]:
        """What the hint names and the test does not, where it follows the hint."""
        names = ["".join(groups) for groups in NAMES_OF_CODE.findall(self.text)]
        return [name for name in names if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", self.after)]


def hints_of(source: str, file: str) -> Iterator[Hint]:
    """The hints in the source of a module."""
    tree = ast.parse(source)
    constants = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    kinds = (ast.Call, ast.Assign, ast.AnnAssign, ast.FunctionDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    named: set[str] = set()
    for node in nodes:
        for value in _values(node, named):
            named |= _names(value)
    for node in nodes:
        for value in _values(node, named):
            for text in _texts(value, constants):
                yield Hint(text, file, value.lineno)


def _names(node: ast.expr) -> set[str]:
    """The names that an expression can stand for, but not those that are filled in."""
    if isinstance(node, ast.Name):
        return {node.id}
    parts = {ast.IfExp: ("body", "orelse"), ast.BinOp: ("left", "right"), ast.Subscript: ("value",)}
    inner = [getattr(node, part) for part in parts.get(type(node), ())]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        inner = [node.func.value]  # of a table
    return {name for part in (*inner, *getattr(node, "values", ())) for name in _names(part)}


def _values(node: ast.AST, named: Set[str]) -> Iterator[ast.expr]:
    """The expressions of a node that are hints; `named` are names that stand for `hint=` elsewhere in the module."""
    if isinstance(node, ast.Call):
        yield from (keyword.value for keyword in node.keywords if keyword.arg in ("hint", "otherwise"))
        if isinstance(node.func, ast.Name) and node.func.id == "did_you_mean" and len(node.args) > 2:
            yield node.args[2]
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        target, value = node.targets[0] if isinstance(node, ast.Assign) else node.target, node.value
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=False))
        for target, value in pairs:
            name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
            if value is not None and name and (name in named or TABLES.search(name)):
                yield from _entries(value)
    elif isinstance(node, ast.FunctionDef) and "hint" in node.name.lower():
        for inner in ast.walk(node):
            if isinstance(inner, (ast.Return, ast.Yield)) and inner.value is not None:
                yield inner.value


def _entries(node: ast.expr) -> list[ast.expr]:
    """The values of a table, which may be written in several ways; of what is no table, itself."""
    if isinstance(node, ast.Dict):
        return [entry for value in node.values for entry in _entries(value)]
    if isinstance(node, ast.DictComp):
        return [node.value]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "fromkeys":
        return node.args[1:]
    return [node]


def _texts(node: ast.expr, constants: Mapping[str, ast.expr]) -> list[str]:
    """The texts that an expression can be; none where it is not written here."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) and node.value else []
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
        text = "".join(str(part) for part in parts)
        return [text] if re.search(r"\w", text) else []
    if isinstance(node, ast.IfExp):
        return _texts(node.body, constants) + _texts(node.orelse, constants)
    if isinstance(node, ast.BoolOp):
        return [text for value in node.values for text in _texts(value, constants)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _texts(node.left, constants) or ["{}"], _texts(node.right, constants) or ["{}"]
        return [first + second for first in left for second in right if (first, second) != ("{}", "{}")]
    if isinstance(node, ast.Tuple):
        return [text for value in node.elts for text in _texts(value, constants)]
    if isinstance(node, ast.Name) and node.id in constants:
        return _texts(constants[node.id], constants)
    return []


def followed_in(source: str, file: str) -> Iterator[Followed]:
    """Every `with hint(TEXT):` in the source of a test module."""
    if "with hint(" not in source:
        return
    lines = source.splitlines()
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        blocks = [
            (inner, call)
            for inner in ast.walk(function)
            if isinstance(inner, ast.With)
            for call in [item.context_expr for item in inner.items]
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "hint"
        ]
        for block, call in blocks:
            after = "\n".join(lines[block.end_lineno or 0 : function.end_lineno])
            for argument in call.args:
                yield Followed(str(ast.literal_eval(argument)), after, f"{file}:{block.lineno} {function.name}")


@functools.cache
def all_hints(root: Path) -> list[Hint]:
    """The hints of core and of every plugin."""
    files = sorted([*root.glob("core/src/**/*.py"), *root.glob("plugins/*/src/**/*.py")])
    return [hint for file in files for hint in hints_of(file.read_text("utf-8"), str(file.relative_to(root)))]


@functools.cache
def all_followed(root: Path) -> list[Followed]:
    """The hints that tests follow."""
    files = sorted([*root.glob("tests/**/test_*.py"), *root.glob("plugins/*/tests/**/test_*.py")])
    return [
        followed for file in files for followed in followed_in(file.read_text("utf-8"), str(file.relative_to(root)))
    ]
