"""Docstrings as reStructuredText: words in single backticks are code, and nothing else is markup.

Napoleon has translated the sections (`Args:`, `Raises:`) before. This extension turns text in backticks into code, with
a link if it is a name that has a page, and escapes characters that have a meaning in reStructuredText.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

_KEPT = re.compile(r"(^[ ]*:[a-z]+(?: [^:\n]+)?:(?=\s)|^[ ]*\.\. .*|``.+?``|:[a-z:]+:`[^`]+`|`[^`]+`)", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_][\w.]*(\(\))?")
_SIGNS = re.compile(r"(?<!\*)\*(?!\*)|(?<=\w)_(?!\w)|\|")
_FIELD = re.compile(r"\s*:[a-z]+[^:`]*:|\s*\.\. ")


def as_markup(lines: list[str]) -> list[str]:
    """Lines of a docstring as reStructuredText.

    Code may continue on the next line. An indented block below a line that ends with a colon is an example and does
    not change; a block between fences of Markdown is one, too, and so is a paragraph that begins with `>>>`.
    """
    lines_out: list[str] = []
    for index, part in enumerate(_between_fences(lines)):
        if index % 2 == 0:
            lines_out += _text_as_markup(part)
        else:
            margin = " " * _indent(part)
            code = (line.removeprefix(margin) for line in part)
            if lines_out and lines_out[-1].strip():
                lines_out.append("")
            lines_out += [f"{margin}.. code-block:: python", ""]
            lines_out += [*(f"{margin}    {line}".rstrip() for line in code), ""]
    return lines_out


def _between_fences(lines: list[str]) -> list[list[str]]:
    """Text and code in turns."""
    parts: list[list[str]] = [[]]
    for line in lines:
        if line.strip().startswith("```"):
            parts.append([])
        else:
            parts[-1].append(line)
    return parts


def _text_as_markup(lines: list[str]) -> list[str]:
    lines_out: list[str] = []
    example_of = -1  # the indentation of the paragraph that an example belongs to
    for block in _blocks(lines):
        if (example_of >= 0 and _indent(block) > example_of) or "".join(block).lstrip().startswith(">>>"):
            lines_out += block
            continue
        lines_out += _translated(block)
        ends = next((line for line in reversed(block) if line.strip()), "")
        example_of = _indent(block) if ends.endswith(":") and not _FIELD.match(ends) else -1
    return [line + ":" if _opens_example(lines_out, index) else line for index, line in enumerate(lines_out)]


def _opens_example(lines: list[str], index: int) -> bool:
    line, *rest = lines[index : index + 3]
    if not line.endswith(":") or _FIELD.match(line) or len(rest) < 2:
        return False
    return not rest[0].strip() and _indent([rest[1]]) > _indent([line])


def _indent(block: list[str]) -> int:
    return min((len(line) - len(line.lstrip()) for line in block if line.strip()), default=0)


def _blocks(lines: list[str]) -> list[list[str]]:
    """Paragraphs, each with the empty line after it."""
    blocks: list[list[str]] = [[]]
    for line in lines:
        blocks[-1].append(line)
        if not line.strip():
            blocks.append([])
    return blocks


def _translated(block: list[str]) -> list[str]:
    text = "\n".join(block)
    pieces = _KEPT.split(text)
    return "".join(_kept(piece) if index % 2 else _plain(piece) for index, piece in enumerate(pieces)).split("\n")


def _plain(text: str) -> str:
    return _SIGNS.sub(lambda sign: "\\" + sign.group(), text)


def _kept(text: str) -> str:
    if text.startswith("``") or not text.startswith("`"):
        return text
    inside = text[1:-1]
    if _NAME.fullmatch(inside):
        return f":py:obj:`{inside}`"
    return f"``{inside}``"


def _process(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    lines[:] = as_markup(lines)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx; after napoleon, which is connected earlier."""
    app.connect("autodoc-process-docstring", _process, priority=600)
    return {"parallel_read_safe": True}
