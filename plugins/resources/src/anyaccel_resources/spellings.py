"""Spellings of requests elsewhere: the device names of other systems, and the equivalent requests."""

from __future__ import annotations

import re
from collections.abc import Callable

from anyaccel_resources.products import form_of, product_named, product_of

_ELSEWHERE = {
    # node labels of GKE, `cloud.google.com/gke-accelerator`
    "nvidia-tesla-a100": "A100-40GB",
    "nvidia-tesla-v100": "V100-16GB",
    "nvidia-h100-mega-80gb": "H100-80GB",
    # hardware of Hugging Face's Spaces and Jobs
    **dict.fromkeys(("cpu-basic", "cpu-upgrade", "cpu-performance", "cpu-xl", "sprx8"), "cpu"),
    "zero-a10g": "any",
    "a100-large": "A100-80GB",
    # how resources of Kubernetes, and of containers, are named
    "nvidia.com/gpu": "cuda",
    "amd.com/gpu": "rocm",
    "google.com/tpu": "tpu",
    "all": "gpu:*",
    "any gpu": "gpu",
    "gpus": "gpu",
    # how TPUs are named
    "v4": "TPU-V4",
    "v5e": "TPU-V5E",
    "v5litepod": "TPU-V5E",
    "v5p": "TPU-V5P",
    "v6e": "TPU-V6E",
}
_CORES_OF_TWO = ("v4", "v5p")  # the number in the name of a slice counts TensorCores, and a chip has two
_SLICE = re.compile(r".*?(?<!\d)\d+g\.(\d+)gb(?:\s*[:=]\s*(\d+))?", re.IGNORECASE)
_INDICES = re.compile(r"(?:(gpu|cuda|rocm|tpu)[:_-]?)?(\d{1,3}(?:\s*[,+]\s*\d{1,3})*)", re.IGNORECASE)
_RANGE = re.compile(r"(gpu|cuda|rocm|tpu):(\d{1,2})-(\d{1,2})", re.IGNORECASE)
# a path of jobs, tasks and devices
_PATH = re.compile(r"/(?:\w+:\w+/)*(?:device:)?(cpu|gpu|tpu):(\d{1,3})", re.IGNORECASE)
_PARTS = re.compile(r"(?:SXM|PCIe|NVL|OAM)\d?\b|\d+\s?GB?\b", re.IGNORECASE)
_LONGEST = 200  # the expressions below take the square of the length, and more
_OPTION = re.compile(r"(mem|cores|nodes)=|price<=", re.IGNORECASE)
_OPTIONS_ELSEWHERE = {
    re.compile(r"\b(?:memory|ram)=(\d+)(?:GB?|GiB)?\+?(?=\s|,|$)", re.IGNORECASE): r"mem=\1GB",
    re.compile(r"\b(?:v?cpus?)=(\d+)\+?(?=\s|,|$)", re.IGNORECASE): r"cores=\1",
    re.compile(r"\bnum_nodes=(?=\d)", re.IGNORECASE): "nodes=",
}


def rewritten(text: str) -> str | None:
    """Return the request that a text of another system means, None if it is not known. It may not parse."""
    if len(text) > _LONGEST:
        return None
    between = _RANGE.fullmatch(text.strip())
    if between:
        kind, first, last = between.groups()
        return f"{kind.lower()}:{'+'.join(map(str, range(int(first), int(last) + 1)))}"
    path = _PATH.fullmatch(text.strip())
    if path:
        return f"{path[1].lower()}:{int(path[2])}"
    indices = _INDICES.fullmatch(text.strip())
    if indices and (indices.group(1) or not indices.group(2).strip("0").isdigit()):  # gpu0, 0 and 0,1; 2 may be a count
        return f"{(indices.group(1) or 'gpu').lower()}:{'+'.join(re.findall('[0-9]+', indices.group(2)))}"
    written = text
    for elsewhere, same in _OPTIONS_ELSEWHERE.items():
        text = elsewhere.sub(same, text)
    mapping = re.sub(r"[\"']|\s*(?=:)|(?<=:)\s*", "", text.strip())
    inner = mapping[1:-1] if mapping[:1] + mapping[-1:] in ("[]", "{}") else mapping
    parts = [part.strip() for part in re.split(r",(?![^\[]*\])|\||\bor\b(?! more)", inner)]
    if not all(parts):
        return None
    wishes: list[str] = []
    for part in parts:
        if not _OPTION.match(part):
            wishes.append(_one(part))
        elif wishes:  # H100:8, nodes=2
            wishes[-1] += f" {part}"
        else:
            wishes.append(f"any {part}")
    joined = ", ".join(wishes)
    joined = f"{{{joined}}}" if mapping.startswith("{") else joined
    return None if joined == written else joined


def _one(text: str) -> str:
    what, *options = re.split(r"\s+(?=(?:mem|cores|nodes|price|sm)[<>]?=)", text)
    for spelled in _RULES:
        found = spelled(what)
        if found is not None:
            return " ".join([found, *options])
    return text


def _slice(text: str) -> str | None:
    """Return the memory of slices (MIG), which count with their own."""
    found = _SLICE.fullmatch(text)
    if found is None:
        return None
    gb, number = found.groups()
    return f"{gb}GB+{f':{number}' if number and int(number) > 1 else ''}"


def _counted(text: str) -> str | None:
    """Read `8xH100`, `8x H100-80GB`, `2 GPUs`, `H100x8` and `h100*8`."""
    before = re.fullmatch(r"(\d+)\s*[x*]\s*(\S.*)|(\d+)\s+(?!GB\b)([A-Za-z].*)", text, re.IGNORECASE)
    after = re.fullmatch(r"(\S.*?)\s*[x*]\s*(\d+)", text, re.IGNORECASE)
    if before:
        number, what = (before.group(1), before.group(2)) if before.group(1) else (before.group(3), before.group(4))
    elif after:
        what, number = after.groups()
    else:
        return None
    return _with_count(what, number)


def _with_count(what: str, number: str) -> str | None:
    name = _name(what) or _name(what.rstrip("s"))
    if name is None:
        return None
    kind = name in ("gpu", "cuda", "rocm", "tpu")
    vendor = {"cuda": "nvidia", "rocm": "amd"}.get(name, name)
    if int(number) == 1:
        return name
    return f"{vendor}:any:{number}" if kind else f"{name}:{number}"


def _option(text: str) -> str | None:
    """Read `--gres=gpu:a100:2`, `--gpus=2`, `gpu=H100`, `gpu:A10G`, `accelerator_type:A100` and `nvidia.com/gpu: 2`."""
    named = r"-{0,2}(?:gres|gpus?|gpus-per-(?:node|task))\s*=\s*|accelerator_type:"
    found = re.fullmatch(rf"(?:{named})?(?:gpu:)?(.+?)(?:[:=](\d+))?", text)
    if found is None or found.group(1) == text:
        return None
    what, number = found.groups()
    if what.isdigit() and number is None and "=" in text:
        what, number = "gpu", what
    return _with_count(what, number or "1")


def _sized(text: str) -> str | None:
    """Read `A100-80`, `a100 80gb`, `A100_80G` and `A100:80GB`, each with or without a count."""
    found = re.fullmatch(r"([A-Za-z][\w ]*?)[\s_:-]*?[\s_:-](\d+)\s*(G|GB|GiB)?(?::(\d+))?", text, re.IGNORECASE)
    product = product_named(found.group(1)) if found else None
    if found is None or product is None or int(found.group(2)) not in product.memory_gb:
        return None
    return f"{product.name}-{found.group(2)}GB{f':{found.group(4)}' if found.group(4) else ''}"


def _memory(text: str) -> str | None:
    """Read `>=40GB`, `40 GB+`, `40G+`, `40GiB+` and `40GB or more`."""
    found = re.fullmatch(r"(>=?\s*)?(\d+)\s*(G|GB|GiB)\s*(\+| or more)?(?::(\d+))?", text, re.IGNORECASE)
    if found is None or not (found.group(1) or found.group(4)):
        return None
    return f"{found.group(2)}GB+{f':{found.group(5)}' if found.group(5) else ''}"


def _capability(text: str) -> str | None:
    """Read `sm_80`, `sm80`, `sm>=8.0`, `cc>=8.0` and `compute>=80`."""
    found = re.fullmatch(r"(?:sm|cc|compute)[ _]?(?:capability)?\s*(?:>=)?\s*(\d+)(?:\.(\d))?\+?", text, re.IGNORECASE)
    if found is None:
        return None
    return f"sm>={found.group(1)}{found.group(2) or ('0' if int(found.group(1)) < 20 else '')}"


def _slice_of_tpu(text: str) -> str | None:
    """Read `v5e-8`, `tpu-v5litepod-8` and `tpu-v4-8`."""
    found = re.fullmatch(r"(?:tpu-?)?(v\d\w*?)-(\d+)", text, re.IGNORECASE)
    if found is None or found.group(1).lower() not in _ELSEWHERE:
        return None
    kind, number = found.group(1).lower(), int(found.group(2))
    chips = number // 2 if kind in _CORES_OF_TWO else number
    return f"{_ELSEWHERE[kind]}{f':{chips}' if chips > 1 else ''}"


def _name(text: str) -> str | None:
    """Return the product or kind of a name without a count."""
    plain = text.strip().lower()
    if plain in _ELSEWHERE:
        return _ELSEWHERE[plain]
    if plain in ("gpu", "cuda", "rocm", "tpu"):
        return plain
    if sized := _sized(text):
        return sized
    flavor = re.fullmatch(r"(t4|a10g)-(?:small|medium|large)", plain)
    name = flavor.group(1) if flavor else text
    labelled = re.sub(r"^(nvidia|amd)-", "", name, flags=re.IGNORECASE).replace("_", " ")
    product, gb = product_of(labelled)
    sizes, forms = (
        [part for part in _PARTS.findall(text) if part[0].isdigit() == is_size] for is_size in (True, False)
    )
    if product is None or (gb and gb not in product.memory_gb) or max(len(sizes), len(forms)) > 1:
        return None
    form = form_of(text.strip())
    form = form if form in product.forms and len(product.forms) > 1 else ""
    return f"{product.name}{f'-{form}' if form else ''}{f'-{gb}GB' if gb and len(product.memory_gb) > 1 else ''}"


_RULES: tuple[Callable[[str], str | None], ...] = (
    _slice,
    _slice_of_tpu,
    _sized,
    _memory,
    _capability,
    _counted,
    _option,
    _name,
)
