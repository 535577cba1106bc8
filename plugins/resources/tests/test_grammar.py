"""The grammar of requests: every form parses, prints and parses back; what is none points at the character."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyaccel import DeviceRequest
from anyaccel.errors import DeviceParseError
from anyaccel.plugin_testing import TinyBackend, plugin_module
from anyaccel.registry import Registry
from anyaccel_resources import RequestEntry, products
from anyaccel_resources.grammar import KINDS, LONGEST
from anyaccel_resources.products import capabilities


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> Registry:
    known = Registry(entry_points=lambda: ())
    monkeypatch.setattr("anyaccel.registry._registry", [known])
    return known


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("gpu", {"kind": "gpu"}),
        ("cuda:1", {"kind": "cuda", "index": 1}),
        ("cpu:0", {"kind": "cpu", "index": 0}),
        ("any", {}),
        ("any:2", {"count": 2}),
        ("A10G", {"product": "A10G"}),
        ("H100:8", {"product": "H100", "count": 8}),
        ("A100-80GB", {"product": "A100", "memory_gb": 80}),
        ("H100!", {"product": "H100", "exact": True}),
        ("B200+", {"product": "B200", "newer": True}),
        ("40GB+", {"memory_gb": 40}),
        ("1TB+", {"memory_gb": 1000}),
        ("40GB+:2", {"memory_gb": 40, "count": 2}),
        ("gpu[bf16]", {"kind": "gpu", "capabilities": ("bf16",)}),
        ("gpu[bf16, fp8]:1", {"kind": "gpu", "capabilities": ("bf16", "fp8"), "index": 1}),
        ("H100:2 mem=64GB", {"product": "H100", "count": 2, "host_memory_gb": 64}),
        ("any mem=1TB cores=8", {"host_memory_gb": 1000, "cores": 8}),
        ("RTX-4090", {"product": "RTX-4090"}),
        ("rtx_pro_6000", {"product": "RTX-PRO-6000"}),
        ("gpu:0+2", {"kind": "gpu", "index": 0, "more": (2,)}),
        ("gpu:*", {"kind": "gpu", "every": True}),
        ("H100:*", {"product": "H100", "every": True}),
        ("any[bf16]:*", {"capabilities": ("bf16",), "every": True}),
        ("40GB+:*", {"memory_gb": 40, "every": True}),
        ("nvidia:40GB+:2", {"kind": "cuda", "memory_gb": 40, "count": 2}),
        ("amd:any:8", {"kind": "rocm", "count": 8}),
        ("gpu:any:2", {"kind": "gpu", "count": 2}),
        ("tpu:any:4", {"kind": "tpu", "count": 4}),
        ("cuda:40GB+", {"kind": "cuda", "memory_gb": 40}),
        ("nvidia:H100:8", {"product": "H100", "count": 8}),
        ("A10", {"product": "A10"}),
        ("L40", {"product": "L40"}),
        ("H100-NVL", {"product": "H100", "form": "NVL"}),
        ("A100-SXM4-80GB:2", {"product": "A100", "form": "SXM", "memory_gb": 80, "count": 2}),
        ("A100-80GB-PCIe!", {"product": "A100", "form": "PCIe", "memory_gb": 80, "exact": True}),
        ("MI300X:8", {"product": "MI300X", "count": 8}),
        ("TPU-V5litepod:8", {"product": "TPU-V5E", "count": 8}),
        ("sm>=80", {"sm": 80}),
        ("sm>=90:2 mem=64GB", {"sm": 90, "count": 2, "host_memory_gb": 64}),
        ("24GB+:2 sm>=89", {"memory_gb": 24, "count": 2, "sm": 89}),
        ("any[fp8] sm>=89", {"capabilities": ("fp8",), "sm": 89}),
        ("H100:8 nodes=2", {"product": "H100", "count": 8, "nodes": 2}),
        ("H100 price<=2.50", {"product": "H100", "price": 2.5}),
    ],
)
def test_every_form_is_one_wish_in_any_case(text, entry):
    for spelling in (text, text.lower(), text.upper(), f"  {text} "):
        assert DeviceRequest.parse(spelling).entries == (RequestEntry(**entry),)


def test_a_list_is_an_order_of_preference_and_a_set_is_not():
    in_order = DeviceRequest.parse(["H100:2", "A100-80GB", "any"])
    assert in_order == DeviceRequest.parse("H100:2, a100-80gb,any") and in_order.ordered
    assert [entry.count for entry in in_order.entries] == [2, 1, 1] and in_order.count == 2
    best = DeviceRequest.parse({"H100", "A100-80GB"})
    assert best == DeviceRequest.parse("{A100-80GB, H100}") == DeviceRequest.parse("{ h100,A100-80GB }")
    assert not best.ordered and best != DeviceRequest.parse("A100-80GB, H100")
    assert DeviceRequest.parse({"H100"}) == DeviceRequest.parse("H100") == DeviceRequest.parse(["H100"])
    assert DeviceRequest.parse(in_order) is in_order


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("foo", r"character 1: 'foo' is neither a kind of device nor a known product"),
        ("", r"character 1: a device is missing"),
        (":2", r"character 1: a device is missing"),
        ("H100:0", r"character 6: '0' is not a count from 1"),
        ("H100:x", r"character 6: 'x' is not a count from 1"),
        ("H100:-1", r"character 6: '-1' is not a count"),
        ("H100:1000000", r"character 6: '1000000' is not a count"),
        ("gpu:x", r"character 5: 'x' is not an index from 0"),
        ("gpu: 1", r"character 5: '' is not an index"),
        ("any:", r"character 5: '' is not a count"),
        ("H100, H10O", r"character 7: 'H10O' is neither.*did you mean 'H100'\?"),
        ("a10gg", r"did you mean 'A10G'\?"),
        ("A100-60GB", r"character 1: no A100 has 60 GB. Available: A100-40GB, A100-80GB"),
        ("40GB", r"character 5: a '\+' is missing after 40GB"),
        ("0GB+", r"character 1: 0GB is not a size"),
        ("9999999GB+", r"is not a size"),
        ("{H100, A100", r"character 12: the brace is not closed"),
        ("H100}", r"character 5: '}' is not expected here"),
        ("H100!+", r"character 7: '!' \(exactly\) and '\+' \(or newer\) cannot be combined"),
        ("H100++", r"cannot be combined"),
        ("gpu[bf17]", r"character 5: 'bf17' is not a known capability.*did you mean 'bf16'\?"),
        ("gpu[bf16", r"character 9: the bracket is not closed"),
        ("gpu[]", r"character 5: '' is not a known capability"),
        ("H100 H200", r"character 6: 'h200' is not expected here"),
        ("H100 mem=64", r"character 10: mem=64 is not understood"),
        ("H100 cores=0", r"cores=0 is not understood"),
        ("H100 mem=1GB mem=2GB", r"given twice"),
        ("H100,", r"character 6: a device is missing"),
        ("gpu:0+0", r"character 7: the index 0 is given twice"),
        ("gpu:0+", r"character 7: '' is not an index"),
        ("H100:1+2", r"character 7: '\+' is not expected here"),
        ("gpu:*+1", r"character 6: '\+' is not expected here"),
        ("nvidia", r"character 7: 'nvidia' is a vendor"),
        ("nvidia:2", r"character 7: 'nvidia' is a vendor"),
        ("amd:H100", r"character 5: H100 is a product of nvidia"),
        ("cpu:any", r"character 5: 'any' is not an index"),
        ("sm>=many", r"character 5: 'many' is not a compute capability"),
        ("sm:80", r"character 3: '>=' is missing"),
        ("H100-OAM", r"character 1: H100 does not exist as OAM. Available: H100-PCIe, H100-SXM, H100-NVL"),
        ("H100-96GB", r"no H100 has 96 GB.*write 'GH200'"),
        ("H100-80GB-94GB", r"character 1: 'H100-80GB-94GB' is neither"),
        ("H100-SXM-PCIe", r"character 1: 'H100-SXM-PCIe' is neither"),
        ("H100:0.5", r"character 6: '0.5' is not a count.*whole devices"),
        ("H100 nodes=0", r"nodes=0 is not understood.*nodes=2"),
        ("H100 price<=0", r"price<=0 is not understood.*price<=2.50"),
        ("H100 price=3", r"price3? is not understood|price.*not understood"),
        ("H100 sm>=80 sm>=90", r"sm is given twice"),
        ("H100;A100", r"character 5: ';' is not expected here"),
        (", ".join(["any"] * 65), r"more than 64 entries"),
        ("x" * (LONGEST + 1), r"is too long"),
    ],
)
def test_what_is_no_request_points_at_the_character(text, message):
    with pytest.raises(DeviceParseError, match=message) as caught:
        DeviceRequest.parse(text)
    assert caught.value.hint or "too long" in str(caught.value)


@pytest.mark.parametrize("value", [None, 3, [], set(), ["H100", None], {"a": 1}, ["any"] * 65, b"any"])
def test_what_is_no_text_nor_list_nor_set_is_refused(value):
    with pytest.raises(DeviceParseError, match=r"is not a request for devices.*a list of texts"):
        DeviceRequest.parse(value)


def test_one_element_of_a_list_is_one_wish():
    with pytest.raises(DeviceParseError, match="'H100, A100' in a list of requests contains several"):
        DeviceRequest.parse(["H100, A100", "any"])


def test_kinds_of_plugins_are_kinds(no_plugins):
    with pytest.raises(DeviceParseError):
        DeviceRequest.parse("chip:1")
    no_plugins.register(plugin_module("p", backends=lambda: [TinyBackend("p", ("chip:0",))]), "p")
    assert DeviceRequest.parse("chip:1").entries == (RequestEntry(kind="chip", index=1),)


_numbers = st.integers(1, 100_000)
_names = st.sampled_from([product.name for product in products()])
_sized = st.sampled_from([(product.name, gb) for product in products() for gb in product.memory_gb])
_chosen = st.lists(st.sampled_from(capabilities()), unique=True).map(tuple)
_host = {
    "host_memory_gb": st.integers(0, 100_000),
    "cores": st.integers(0, 100_000),
    "capabilities": _chosen,
    "sm": st.sampled_from([0, 70, 80, 89, 103, 120]),
    "nodes": st.integers(1, 100_000),
    "price": st.just(0) | st.integers(1, 10_000_000).map(lambda cents: cents / 100),
}
_formed = st.sampled_from([(product.name, form) for product in products() for form in product.forms])
_several = st.sampled_from([kind for kind in KINDS if kind != "cpu"])


def _built(**fields: st.SearchStrategy) -> st.SearchStrategy[RequestEntry]:
    return st.builds(RequestEntry, **{**_host, **fields})


_indices = st.lists(st.integers(0, 100_000), min_size=2, max_size=4, unique=True)
_entries = st.one_of(
    _built(kind=st.sampled_from(KINDS), index=st.none() | st.integers(0, 100_000)),
    _indices.flatmap(lambda it: _built(kind=st.sampled_from(KINDS), index=st.just(it[0]), more=st.just(tuple(it[1:])))),
    _built(kind=st.sampled_from(KINDS), every=st.just(True)),
    _built(kind=_several, count=st.integers(2, 100_000)),
    _built(kind=_several, memory_gb=st.integers(1, 100_000), count=_numbers),
    _built(kind=_several, memory_gb=st.integers(1, 100_000), every=st.just(True)),
    _formed.flatmap(
        lambda it: _built(product=st.just(it[0]), form=st.just(it[1]), count=_numbers, newer=st.booleans())
    ),
    _built(every=st.just(True)),
    _built(product=_names, every=st.just(True)),
    _built(memory_gb=st.integers(1, 100_000), every=st.just(True)),
    _built(memory_gb=st.integers(0, 100_000), count=_numbers),
    _built(product=_names, exact=st.booleans(), count=_numbers),
    _built(product=_names, newer=st.booleans(), count=_numbers),
    _sized.flatmap(lambda it: _built(product=st.just(it[0]), memory_gb=st.just(it[1]), count=_numbers)),
)


@given(st.lists(_entries, min_size=1, max_size=6), st.booleans())
def test_what_is_printed_parses_back(entries, ordered):
    texts = list(map(str, entries))
    request = DeviceRequest.parse(texts if ordered else set(texts))
    assert DeviceRequest.parse(str(request)) == request
    assert set(request.entries) == set(entries)
    assert repr(request) == f"DeviceRequest.parse({str(request)!r})"


@given(st.text(max_size=40) | st.text("HAB1024x0:[]{}!+,- gpuanymefGB=<>.sSXMl", max_size=30))
def test_any_text_is_a_request_or_a_parse_error(text):
    try:
        request = DeviceRequest.parse(text)
    except DeviceParseError as error:
        assert "character" in error.problem and error.hint
        if written := re.fullmatch(r"write '([^']+)'", error.hint):  # what it says to write is a request
            assert DeviceRequest.parse(written.group(1))
    else:
        assert DeviceRequest.parse(str(request)) == request
