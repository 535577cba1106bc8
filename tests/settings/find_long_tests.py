"""Writes long_tests.toml from what pytest printed.

    PYTEST_ADDOPTS=--durations=0 nox -s full > log
    python tests/settings/find_long_tests.py log ...

A test is long if it takes more than a second, and those of one function are, if they take more than 3 seconds together;
a file, if the setup of one of its tests takes more than 3 seconds; a page, if one of its blocks takes more than a
second. READMEs are in every check.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

LINE = re.compile(r"^ *([\d.]+)s (call|setup) +((?:tests|plugins|docs|README|core)[^:]*)(::.*)?$", re.MULTILINE)
CALL, TOGETHER, SETUP = 1.0, 3.0, 3.0
HEAD = """\
# Long tests: `files` whose tests share a long setup, and single `functions`. A plain `nox` runs one part of sixteen;
# the commit decides which. `nox -s full` runs all. Written by tests/settings/find_long_tests.py.
"""


def long_tests(text: str) -> tuple[list[str], list[str]]:
    """Files and functions that take long, of what pytest printed."""
    files, calls, together = set(), dict[str, float](), Counter[str]()
    for seconds, stage, file, name in LINE.findall(text):
        is_long = float(seconds) > (SETUP if stage == "setup" else CALL)
        is_page = not file.rpartition("/")[2].startswith("test_")  # its blocks continue each other
        if file.endswith("README.md"):
            continue
        if is_long and (stage == "setup" or is_page):
            files.add(file)
        elif stage == "call" and not is_page:  # of several sessions that run a test, the longest
            calls[file + name] = max(calls.get(file + name, 0.0), float(seconds))
    for test, longest in calls.items():
        together[test.partition("[")[0]] += longest
    functions = {test.partition("[")[0] for test, longest in calls.items() if longest > CALL}
    functions |= {function for function, total in together.items() if total > TOGETHER}
    return sorted(files), sorted(it for it in functions if it.partition("::")[0] not in files)


if __name__ == "__main__":
    found = long_tests("\n".join(Path(log).read_text("utf-8") for log in sys.argv[1:]))
    lines = [
        f"{name} = [\n" + "".join(f'    "{it}",\n' for it in listed) + "]\n"
        for name, listed in zip(("files", "functions"), found, strict=True)
    ]
    Path(__file__).with_name("long_tests.toml").write_text(HEAD + "".join(lines), "utf-8")
