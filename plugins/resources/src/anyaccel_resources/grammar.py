"""The grammar of requests, written once.

    request      = preference | "{" preference "}"            in braces: whichever is best
    preference   = entry ("," entry)*
    entry        = what ["[" word ("," word)* "]"] [":" (number ("+" number)* | "*")] (" " option)*
    what         = kind | "any" | product ["-" size] ["!" | "+"] | size "+"
    size         = number ("GB" | "TB")
    option       = "mem=" size | "cores=" number

After a kind the number is an index, and there may be several; else it is a count. `*` is as many as there are. Upper
and lower case are the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from anyaccel.device import ALIASES
from anyaccel.errors import DeviceParseError
from anyaccel.suggestions import did_you_mean
from anyaccel_resources.entry import RequestEntry
from anyaccel_resources.products import capabilities, product_named, product_names, products

KINDS = ("cpu", "gpu", "mps", "xpu", "tpu", "npu", "hpu", "sim", *ALIASES)
LONGEST = 2_000
MOST_ENTRIES = 64
_MOST = 100_000  # devices, GB or cores
_FORMS = "'gpu', 'cuda:1', 'any', 'H100:8', 'A100-80GB', 'H100!', 'B200+', '40GB+:2', 'gpu[bf16]'"
_WORD = re.compile(r"[A-Za-z0-9_.-]+")
_SIZE = re.compile(r"(\d+)(GB|TB)", re.IGNORECASE)
_PRODUCT = re.compile(r"(.+?)-(\d+)(GB|TB)", re.IGNORECASE)

MoreKinds = Callable[[], Collection[str]]


class Parser:
    """Read one text from left to right.

    Args:
        text: The request.
        more_kinds: Function that returns more kinds; called only for a word that is nothing else.
    """

    def __init__(self, text: str, more_kinds: MoreKinds = tuple) -> None:
        if len(text) > LONGEST:
            raise DeviceParseError(
                f"a request of {len(text)} characters is too long", cause=f"at most {LONGEST} are taken"
            )
        self._text, self._at, self._more_kinds = text, 0, more_kinds

    def request(self) -> tuple[tuple[RequestEntry, ...], bool]:
        """Return the entries, and whether they are in order of preference.

        Raises:
            DeviceParseError: the text is not a request; the message names the character.
        """
        self._blanks()
        in_braces = self._take("{")
        entries = [self._entry()]
        while self._take(","):
            entries.append(self._entry())
            if len(entries) > MOST_ENTRIES:
                raise self._error(f"there are more than {MOST_ENTRIES} entries", hint="ask for fewer")
        if in_braces and not self._take("}"):
            raise self._error("the brace is not closed", hint="write {H100, A100}")
        if self._at < len(self._text):
            raise self._error(f"{self._text[self._at]!r} is not expected here", hint="separate wishes with commas")
        return tuple(entries), not in_braces

    def _entry(self) -> RequestEntry:
        self._blanks()
        start, word = self._at, self._word()
        if not word:
            raise self._error("a device is missing", hint="write 'gpu' or 'any'")
        settings = self._what(word, start)
        is_kind = "kind" in settings
        if self._take("["):
            settings["capabilities"] = self._capabilities()
        if self._take(":", blanks=False):
            settings |= self._numbers(is_kind)
        self._blanks()
        while re.match(r"[A-Za-z]", self._text[self._at : self._at + 1]):
            name, value = self._option()
            if name in settings:
                raise self._error("the host's memory or cores are given twice", hint="give each once")
            settings[name] = value
        return RequestEntry(**settings)

    def _what(self, word: str, start: int) -> dict[str, Any]:
        lower = word.lower()
        if size := _SIZE.fullmatch(word):
            if not self._take("+", blanks=False):
                raise self._error(f"after {word} a '+' is missing", hint=f"write '{word}+': at least so much memory")
            return {"memory_gb": self._gigabytes(size.groups(), start)}
        if lower == "any":
            return {}
        if lower in KINDS or (product_named(word) is None and lower in self._more_kinds()):
            return {"kind": lower}
        return self._product(word, start)

    def _product(self, word: str, start: int) -> dict[str, Any]:
        sized = _PRODUCT.fullmatch(word) if product_named(word) is None else None
        product = product_named(sized.group(1) if sized else word)
        if product is None:
            raise self._unknown(word, start)
        settings: dict[str, Any] = {"product": product.name}
        if sized:
            size = self._gigabytes(sized.groups()[1:], start)
            if size not in product.memory_gb:
                sizes = ", ".join(f"{product.name}-{gb}GB" for gb in product.memory_gb)
                raise self._error(f"there is no {product.name} with {size} GB", start, available=sizes)
            settings["memory_gb"] = size
        for mark, name in (("!", "exact"), ("+", "newer")):
            if self._take(mark, blanks=False):
                settings[name] = True
        if len(settings.keys() & {"exact", "newer"}) == 2 or self._text[self._at : self._at + 1] in ("!", "+"):
            raise self._error("'!' (exactly) and '+' (or newer) exclude each other", hint="leave one out")
        return settings

    def _unknown(self, word: str, start: int) -> DeviceParseError:
        kinds = list(dict.fromkeys([*KINDS, *self._more_kinds()]))
        names = {str(name).lower(): name for name in [*kinds, "any", *product_names()]}
        hint = did_you_mean(word.lower(), names, f"write for instance {_FORMS}")
        close = re.fullmatch(r"did you mean '(.*)'\?", hint)
        hint = f"did you mean {names[close.group(1)]!r}?" if close else hint
        known = ", ".join(product.name for product in products())
        available = f"kinds {', '.join(kinds)}; any; products {known}"
        return self._error(f"{word!r} is neither a kind of device nor a known product", start, available, hint)

    def _capabilities(self) -> tuple[str, ...]:
        names: list[str] = []
        while True:
            self._blanks()
            start, word = self._at, self._word().lower()
            if word not in capabilities():
                hint = did_you_mean(word, capabilities(), "use one of these")
                raise self._error(f"{word!r} is not a known capability", start, ", ".join(capabilities()), hint)
            names.append(word)
            self._blanks()
            if self._take("]", blanks=False):
                return tuple(dict.fromkeys(names))
            if not self._take(","):
                raise self._error("the bracket is not closed", hint="write gpu[bf16]")

    def _numbers(self, is_index: bool) -> dict[str, Any]:
        if self._take("*", blanks=False):
            return {"every": True}
        numbers = [self._number(is_index)]
        while is_index and self._take("+", blanks=False):
            start = self._at
            numbers.append(self._number(is_index))
            if numbers[-1] in numbers[:-1]:
                raise self._error(f"the index {numbers[-1]} is given twice", start, hint="give each once")
        if not is_index:
            return {"count": numbers[0]}
        return {"index": numbers[0], "more": tuple(numbers[1:])}

    def _number(self, is_index: bool) -> int:
        start, word = self._at, self._word()
        what, least = ("an index", 0) if is_index else ("a count", 1)
        if not (word.isascii() and word.isdigit()) or not least <= int(word) <= _MOST:
            raise self._error(f"{word!r} is not {what} from {least} to {_MOST}", start, hint="write a number")
        return int(word)

    def _option(self) -> tuple[str, int]:
        start, name = self._at, self._word().lower()
        if name not in ("mem", "cores") or not self._take("=", blanks=False):
            raise self._error(
                f"{name!r} is not expected here", start, "mem=64GB, cores=8", "separate wishes with commas"
            )
        at, word = self._at, self._word()
        size = _SIZE.fullmatch(word)
        if name == "mem" and size:
            value = self._gigabytes(size.groups(), at)
        elif name == "cores" and word.isascii() and word.isdigit() and 1 <= int(word) <= _MOST:
            value = int(word)
        else:
            raise self._error(f"{name}={word} is not understood", at, hint="write mem=64GB or cores=8")
        self._blanks()
        return ("host_memory_gb" if name == "mem" else name), value

    def _gigabytes(self, parts: tuple[str | None, ...], start: int) -> int:
        digits, unit = str(parts[-2]), str(parts[-1]).upper()
        value = int(digits) * (1000 if unit == "TB" else 1) if len(digits) < 7 else 0
        if not 1 <= value <= _MOST:
            raise self._error(f"{digits}{unit} is not a size from 1GB to {_MOST}GB", start, hint="write '40GB+'")
        return value

    def _word(self) -> str:
        match = _WORD.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return match.group() if match else ""

    def _take(self, mark: str, *, blanks: bool = True) -> bool:
        if blanks:
            self._blanks()
        taken = self._text.startswith(mark, self._at)
        self._at += len(mark) if taken else 0
        return taken

    def _blanks(self) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1

    def _error(self, problem: str, at: int | None = None, available: str = "", hint: str = "") -> DeviceParseError:
        place = (self._at if at is None else at) + 1
        where = f"the request {self._text!r}, character {place}"
        return DeviceParseError(f"{where}: {problem}", available=available, hint=hint or f"write for instance {_FORMS}")
