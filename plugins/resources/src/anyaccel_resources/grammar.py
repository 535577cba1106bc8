"""The grammar of requests, written once.

    request      = preference | "{" preference "}"            in braces: whichever is best
    preference   = entry ("," entry)*
    entry        = what ["[" word ("," word)* "]"] [":" (number ("+" number)* | "*")] (" " option)*
    what         = kind | [(kind | vendor) ":"] ("any" | size "+") | [vendor ":"] model | "sm>=" number
    model        = product ["-" form] ["-" size] ["!" | "+"]
    size         = number ("GB" | "TB")
    option       = "mem=" size | "cores=" number | "nodes=" number | "sm>=" number | "price<=" dollars

After a kind alone the number is an index, and there may be several; else it is a count. `*` is as many as there are.
Upper and lower case are the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from anyaccel.device import ALIASES
from anyaccel.errors import DeviceParseError
from anyaccel.suggestions import did_you_mean
from anyaccel_resources.entry import VENDORS, RequestEntry
from anyaccel_resources.products import capabilities, product_named, product_names, products
from anyaccel_resources.spellings import rewritten

KINDS = ("cpu", "gpu", "mps", "xpu", "tpu", "npu", "hpu", "sim", *ALIASES)
LONGEST = 2_000
MOST_ENTRIES = 64
_MOST = 100_000  # devices, GB or cores
_EXAMPLES = "'gpu', 'cuda:1', 'any', 'H100:8', 'A100-80GB', 'H100!', 'B200+', '40GB+:2', 'gpu[bf16]'"
_WORD = re.compile(r"[A-Za-z0-9_.-]+")
_SIZE = re.compile(r"(\d+)(GB|TB)", re.IGNORECASE)
_FORMS = {"sxm": "SXM", "pcie": "PCIe", "nvl": "NVL", "oam": "OAM"}
_PART = re.compile(r"(.+)[-_](?:(SXM|PCIe|NVL|OAM)\d?|(\d+)(GB|TB))", re.IGNORECASE)
_SM = re.compile(r"[3-9]\d|1[0-9]\d")
_DOLLARS = re.compile(r"\d{1,6}(\.\d{1,4})?")

MoreKinds = Callable[[], Collection[str]]


def parsed(text: str, more_kinds: MoreKinds = tuple) -> tuple[tuple[RequestEntry, ...], bool]:
    """Return the entries of a request, and whether they are in order of preference.

    Raises:
        DeviceParseError: the text is not a request. The hint has what to write if it is one in the spelling of another
            system, such as `8xH100`.
    """
    try:
        return Parser(text, more_kinds).request()
    except DeviceParseError as error:
        better = rewritten(text)
        if better is None:
            raise
        try:
            Parser(better, more_kinds).request()
        except DeviceParseError:
            raise error from None
        raise DeviceParseError(error.problem, available=error.available, hint=f"write {better!r}") from None


class Parser:
    """Read one text from left to right.

    Args:
        text: The request.
        more_kinds: Function that returns more kinds; called only for an otherwise unknown word.
    """

    def __init__(self, text: str, more_kinds: MoreKinds = tuple) -> None:
        if len(text) > LONGEST:
            raise DeviceParseError(
                f"a request of {len(text)} characters is too long", cause=f"at most {LONGEST} are allowed"
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
                raise self._error(f"there are more than {MOST_ENTRIES} entries", hint="request fewer")
        if in_braces and not self._take("}"):
            raise self._error("the brace is not closed", hint="write {H100, A100}")
        if self._at < len(self._text):
            raise self._error(
                f"{self._text[self._at]!r} is not expected here", hint="separate alternatives with commas"
            )
        return tuple(entries), not in_braces

    def _entry(self) -> RequestEntry:
        self._blanks()
        start, word = self._at, self._word()
        if not word:
            raise self._error("a device is missing", hint="write 'gpu' or 'any'")
        lower = word.lower()
        settings: dict[str, Any]
        if _SIZE.fullmatch(word):
            settings = {"memory_gb": self._size(word, start)}
        elif lower == "any":
            settings = {"any": True}
        elif lower == "sm":
            settings = {"sm": self._sm()}
        elif lower in VENDORS:
            settings = self._of_vendor(lower)
        elif lower in KINDS or (product_named(word) is None and lower in self._more_kinds()):
            settings = {"kind": lower, **({} if lower == "cpu" else self._of_kind())}
        else:
            settings = self._product(word, start)
        is_index = settings.keys() == {"kind"}
        if self._take("["):
            settings["capabilities"] = self._capabilities()
        if self._take(":", blanks=False):
            settings |= self._numbers(is_index)
        self._blanks()
        while re.match(r"[A-Za-z]", self._text[self._at : self._at + 1]):
            name, value = self._option()
            if name in settings:
                problem = f"{'the memory of the host' if name == 'host_memory_gb' else name} is given twice"
                raise self._error(problem, hint="give each once")
            settings[name] = value
        settings.pop("any", None)
        return RequestEntry(**settings)

    def _of_kind(self) -> dict[str, Any]:
        """Read `:any` or `:40GB+` after a kind."""
        before = self._at
        if self._take(":", blanks=False):
            start, word = self._at, self._word()
            if word.lower() == "any":
                return {"any": True}
            if _SIZE.fullmatch(word):
                return {"memory_gb": self._size(word, start)}
        self._at = before
        return {}

    def _of_vendor(self, vendor: str) -> dict[str, Any]:
        """Read what follows `nvidia` or `amd`."""
        kind, before = VENDORS[vendor], self._at
        if settings := self._of_kind():
            return {"kind": kind, **settings}
        start = self._at + 1
        word = self._word() if self._take(":", blanks=False) else ""
        if not word or word.isdigit():
            hint = f"write '{kind}' for one of its GPUs, '{vendor}:any:2' for two, '{vendor}:40GB+' or a product"
            raise self._error(f"{vendor!r} is a vendor, but its device is missing", before, hint=hint)
        settings = self._product(word, start)
        product = product_named(settings["product"])
        if product is not None and product.vendor != vendor:
            raise self._error(f"{product.name} is a product of {product.vendor}", start, hint="leave the vendor out")
        return settings

    def _size(self, word: str, start: int) -> int:
        if not self._take("+", blanks=False):
            raise self._error(f"a '+' is missing after {word}", hint=f"write '{word}+' for at least this much memory")
        return self._gigabytes(word, start)

    def _sm(self) -> int:
        taken = self._take(">=")
        self._blanks()
        start, word = self._at, self._word()
        if not taken or not _SM.fullmatch(word):
            problem = f"{word!r} is not a compute capability in the form of compilers" if taken else "'>=' is missing"
            raise self._error(problem, start, hint="write 'sm>=80' for 8.0 and newer")
        return int(word)

    def _product(self, word: str, start: int) -> dict[str, Any]:
        name, settings = word, dict[str, Any]()
        while product_named(name) is None and (part := _PART.fullmatch(name)):
            before, form, *size = part.groups()
            if ("form" if form else "memory_gb") in settings:
                break  # given twice: no product is called so
            name = before
            if form:
                settings["form"] = _FORMS[form.lower()]
            else:
                settings["memory_gb"] = self._gigabytes("".join(size), start)
        product = product_named(name)
        if product is None:
            kinds = list(dict.fromkeys([*KINDS, *self._more_kinds()]))
            names = {str(option).lower(): option for option in [*kinds, "any", *product_names()]}
            hint = did_you_mean(word.lower(), names, f"write for example {_EXAMPLES}")
            close = re.fullmatch(r"did you mean '(.*)'\?", hint)
            hint = f"did you mean {names[close.group(1)]!r}?" if close else hint
            listed = ", ".join(product.name for product in products())
            available = f"kinds {', '.join(kinds)}; any; products {listed}"
            raise self._error(f"{word!r} is neither a kind of device nor a known product", start, available, hint)
        settings["product"] = product.name
        memory = settings.get("memory_gb")
        if memory is not None and memory not in product.memory_gb:
            sizes = ", ".join(f"{product.name}-{gb}GB" for gb in product.memory_gb)
            hint = "write 'GH200': it contains the H100 with 96 GB" if (product.name, memory) == ("H100", 96) else ""
            raise self._error(f"no {product.name} has {memory} GB", start, sizes, hint)
        form = settings.get("form")
        if form is not None and form not in product.forms:
            forms = ", ".join(f"{product.name}-{form}" for form in product.forms)
            raise self._error(f"{product.name} does not exist as {form}", start, forms, f"write '{product.name}'")
        for mark, name in (("!", "exact"), ("+", "newer")):
            if self._take(mark, blanks=False):
                settings[name] = True
        if len(settings.keys() & {"exact", "newer"}) == 2 or self._text[self._at : self._at + 1] in ("!", "+"):
            raise self._error("'!' (exactly) and '+' (or newer) cannot be combined", hint="leave one out")
        return settings

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
            hint = "request whole devices" if re.fullmatch(r"\d*\.\d+", word) else "write a number"
            raise self._error(f"{word!r} is not {what} from {least} to {_MOST}", start, hint=hint)
        return int(word)

    def _option(self) -> tuple[str, Any]:
        start, name = self._at, self._word().lower()
        if name == "sm":
            value = self._sm()
            self._blanks()
            return name, value
        if name not in ("mem", "cores", "nodes", "price"):
            options = "mem=64GB, cores=8, nodes=2, sm>=80, price<=2.50"
            is_option = self._text[self._at : self._at + 1] == "="
            hint = "leave it out" if is_option else "separate alternatives with commas"
            raise self._error(f"{name!r} is not expected here", start, options, hint)
        sign = "<=" if name == "price" else "="
        taken = self._take(sign, blanks=False)
        at, word = self._at, self._word()
        number = int(word) if word.isascii() and word.isdigit() and len(word) < 7 else 0
        result: tuple[str, Any]
        if taken and name == "mem" and _SIZE.fullmatch(word):
            result = "host_memory_gb", self._gigabytes(word, at)
        elif taken and name == "price" and _DOLLARS.fullmatch(word) and float(word):
            result = name, float(word)
        elif taken and name in ("cores", "nodes") and 1 <= number <= _MOST:
            result = name, number
        else:
            price = "write price<=2.50: US dollars an hour for a machine"
            of_machines = "write nodes=2" if name == "nodes" else "write mem=64GB or cores=8"
            hint = price if name == "price" else of_machines
            raise self._error(f"{name}{sign if taken else ''}{word} is not understood", at, hint=hint)
        self._blanks()
        return result

    def _gigabytes(self, size: str, start: int) -> int:
        digits, unit = size[:-2], size[-2:].upper()
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
        return DeviceParseError(
            f"{where}: {problem}", available=available, hint=hint or f"write for example {_EXAMPLES}"
        )
