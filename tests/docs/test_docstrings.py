"""Docstrings become reStructuredText: code stays code, special characters are escaped, examples stay examples."""

from __future__ import annotations

import pytest
from docstrings import as_markup
from scripts import page_of


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("values, [n, *shape]", r"values, [n, \*shape]"),
        ("the `from_` constructors", r"the :py:obj:`from_` constructors"),
        ("all from_ and a|b", r"all from\_ and a\|b"),
        ("see `split_random()`", "see :py:obj:`split_random()`"),
        ('`"LABEL.COLUMN"` is a name', '``"LABEL.COLUMN"`` is a name'),
        ("**use it** anyway", "**use it** anyway"),
        (":param values: [n, *shape] of `x`", r":param values: [n, \*shape] of :py:obj:`x`"),
        (r":param \*rest: `a b`", r":param \*rest: ``a b``"),
        (".. rubric:: a*b", ".. rubric:: a*b"),
        ("``x`` and :class:`X`", "``x`` and :class:`X`"),
    ],
)
def test_a_line_is_translated(written: str, read: str) -> None:
    assert as_markup([written]) == [read]


def test_code_may_go_over_the_end_of_a_line() -> None:
    assert as_markup(["say `x ==", "  1` or not"]) == ["say ``x ==", "  1`` or not"]


def test_what_is_indented_below_a_colon_is_an_example() -> None:
    written = ["A whole file:", "", "    f(*args)", "", "    `x`", "", "More *text."]
    assert as_markup(written) == ["A whole file::", "", "    f(*args)", "", "    `x`", "", r"More \*text."]


def test_what_is_between_fences_is_an_example() -> None:
    written = ["Do:", "", "```python", "for a in b:", "    f(*a)  # `x`", "```", "", "More *text."]
    read = "\n".join(as_markup(written))
    assert "\n\n.. code-block:: python\n\n    for a in b:\n        f(*a)  # `x`\n\n" in read
    assert read.startswith("Do:\n\n") and read.endswith(r"More \*text.")


def test_a_paragraph_of_a_session_is_an_example() -> None:
    written = ["Do *it:", "", ">>> f(*args)", "[`x`, a_]", "", "More *text."]
    assert as_markup(written) == [r"Do \*it:", "", ">>> f(*args)", "[`x`, a_]", "", r"More \*text."]


def test_a_colon_without_an_example_is_a_colon() -> None:
    assert as_markup(["Two things:", "", "one."]) == ["Two things:", "", "one."]


def test_a_script_is_a_page() -> None:
    page = page_of("script.py", '"""What `it` does."""\nprint(1)\n')
    assert page.splitlines()[2:] == [
        *("script.py", "=========", "", "What :py:obj:`it` does.", ""),
        *(".. literalinclude:: script.py", "   :language: python"),
    ]
