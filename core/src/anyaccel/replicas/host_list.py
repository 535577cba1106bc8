"""Host list: the names in a list of nodes as Slurm writes it, such as `gpu[01-03,7],login`."""

from __future__ import annotations

import re
from collections.abc import Iterator

_PART = re.compile(r"([^\[\],]*)(?:\[([^\]]*)\])?")


def first_host(hosts: str) -> str:
    """The first name of a list; the text itself where it is no list."""
    return next(host_names(hosts), hosts)


def host_names(hosts: str) -> Iterator[str]:
    """Every name of a list, in its order; numbers keep their leading zeros."""
    for entry in _entries(hosts):
        yield from _expanded(entry)


def _entries(hosts: str) -> Iterator[str]:
    """The parts between commas that stand in no bracket."""
    depth, begin = 0, 0
    for at, letter in enumerate(hosts + ","):
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            yield hosts[begin:at].strip()
            begin = at + 1


def _expanded(entry: str) -> Iterator[str]:
    """The names of one part, which may have several brackets: `rack[1-2]node[1-4]`."""
    match = _PART.match(entry)
    if not entry or match is None or not match[0]:
        return
    prefix, ranges, rest = match[1], match[2], entry[match.end() :]
    middles = [""] if ranges is None else list(_numbers(ranges))
    tails = list(_expanded(rest)) if rest else [""]
    yield from (f"{prefix}{middle}{tail}" for middle in middles for tail in tails)


def _numbers(ranges: str) -> Iterator[str]:
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if not last:
            yield first
            continue
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
