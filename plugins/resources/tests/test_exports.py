"""Exports: every form that a scheduler takes, checked against its documented names; what it cannot say is refused."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyaccel import DeviceRequest
from anyaccel.errors import AnyaccelError, ConfigError, DeviceParseError
from anyaccel_resources import products
from anyaccel_resources.exports import FORMATS, NAMES


def exported(request, to):
    return DeviceRequest.parse(request).export(to)


FORMS = [
    ("modal", "H100:8", "H100:8"),
    ("modal", "h100!", "H100!"),
    ("modal", "B200+:2", "B200+:2"),
    ("modal", "A100-80GB:2", "A100-80GB:2"),
    ("modal", "A100", "A100"),
    ("modal", "A10G", "A10"),
    ("modal", "T4!", "T4"),
    ("modal", "any", "any"),
    ("modal", "gpu", "any"),
    ("modal", ["H100", "A100-40GB:2"], ["H100", "A100-40GB:2"]),
    ("skypilot", "H100:8", {"accelerators": "H100:8"}),
    ("skypilot", "A100-80GB", {"accelerators": "A100-80GB:1"}),
    ("skypilot", "40GB+:2 mem=64GB cores=8", {"accelerators": "40GB+:2", "memory": "64+", "cpus": "8+"}),
    ("skypilot", ["L4", "T4"], {"ordered": [{"accelerators": "L4:1"}, {"accelerators": "T4:1"}]}),
    ("skypilot", {"L4", "T4"}, {"any_of": [{"accelerators": "L4:1"}, {"accelerators": "T4:1"}]}),
    ("skypilot", "cpu cores=4", {"cpus": "4+"}),
    (
        "ray",
        "H100:2 mem=64GB cores=8",
        {"num_gpus": 2, "num_cpus": 8, "memory": 64 * 10**9, "accelerator_type": "H100"},
    ),
    ("ray", "any", {"num_gpus": 1}),
    ("ray", "cpu cores=2", {"num_gpus": 0, "num_cpus": 2}),
    ("slurm", "H100:8", ["--gpus=h100:8"]),
    ("slurm", "gpu mem=64GB cores=8", ["--gpus=1", "--mem=64G", "--cpus-per-task=8"]),
    ("slurm", "A100-80GB:2", ["--gpus=a100:2", "--constraint=a10080gb"]),
    ("slurm", ["H100:2", "A100:2"], ["--gpus=2", "--constraint=h100|a100"]),
    (
        "kubernetes",
        "A100-80GB:2 mem=64GB cores=8",
        {
            "resources": {"limits": {"nvidia.com/gpu": 2, "cpu": 8, "memory": "64G"}},
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"},
        },
    ),
    ("kubernetes", "rocm", {"resources": {"limits": {"amd.com/gpu": 1}}, "nodeSelector": {}}),
]


@pytest.mark.parametrize(("to", "request_", "expected"), FORMS)
def test_a_request_is_written_as_documented(to, request_, expected):
    assert exported(request_, to) == expected


def test_a_claim_has_a_class_a_count_and_selectors():
    claim = exported("A100-80GB:2", "dra")
    assert (claim["apiVersion"], claim["kind"]) == ("resource.k8s.io/v1", "ResourceClaim")
    (request,) = claim["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == "gpu.nvidia.com" and request["exactly"]["count"] == 2
    (selector,) = request["exactly"]["selectors"]
    assert "contains('a100')" in selector["cel"]["expression"] and "quantity('72G')" in selector["cel"]["expression"]
    (several,) = exported(["H100:2", "40GB+"], "dra")["spec"]["devices"]["requests"]
    assert [each["count"] for each in several["firstAvailable"]] == [2, 1] and "exactly" not in several


@pytest.mark.parametrize(
    ("to", "request_", "told"),
    [
        ("modal", "RTX-4090", "its documentation does not list it. Available: T4, L4"),
        ("modal", "A10G:8", "at most 4"),
        ("modal", "H100:9", "at most 8"),
        ("modal", "mps", "does not list it"),
        ("modal", "H100 mem=64GB", "settings of their own"),
        ("modal", "{H100, T4}", "order of preference"),
        ("skypilot", "H100!", "products and memory sizes"),
        ("skypilot", "any", "write '16GB\\+'"),
        ("ray", "H100, T4", "it takes one wish"),
        ("ray", "MI300X", "no such accelerator type"),
        ("ray", "A100-80GB", "a product is all that it takes"),
        ("ray", "40GB+", "name a product"),
        ("slurm", "gpu:1", "numbers them itself"),
        ("slurm", "40GB+", "names of products alone"),
        ("slurm", "H100:2, A100", "products of one count"),
        ("kubernetes", "H100, T4", "--export dra"),
        ("kubernetes", "A100", "write the memory, too: 'A100-40GB'"),
        ("kubernetes", "B200+", "labels for equality"),
        ("kubernetes", "RTX-5090", "its label is not known"),
        ("dra", "{H100, T4}", "order of preference"),
        ("dra", "gpu[bf16]", "products and memory"),
        ("pbs", "H100", "'pbs' is not a format of requests. Available: modal, skypilot"),
        (3, "H100", "3 is not a format"),
    ],
)
def test_what_a_scheduler_cannot_be_asked_for_is_refused(to, request_, told):
    with pytest.raises(ConfigError, match=told):
        exported(request_, to)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("modal.gpu.A100(size='80GB', count=2)", "write 'A100-80GB:2'"),
        ("gpu.H100()", "write 'H100'"),
        ("modal.gpu.Any()", "write 'any'"),
    ],
)
def test_the_retired_objects_of_modal_are_told_the_text_of_today(text, hint):
    with pytest.raises(DeviceParseError, match=hint) as error:
        DeviceRequest.parse(text)
    written = re.search(r"write '(.*)'", error.value.hint).group(1)
    assert DeviceRequest.parse(DeviceRequest.parse(written).export("modal")) == DeviceRequest.parse(written)


WISHES = st.builds(
    "{}{}{}".format,
    st.sampled_from([product.name for product in products()] + ["any", "gpu", "40GB+", "A100-80GB", "H100!", "B200+"]),
    st.sampled_from(["", ":2", ":8"]),
    st.sampled_from(["", " mem=64GB", " cores=8"]),
)


@given(st.lists(WISHES, min_size=1, max_size=3), st.sampled_from(sorted(FORMATS)))
def test_every_export_is_plain_json_or_an_error_with_a_hint(wishes, to):
    try:
        request = DeviceRequest.parse(wishes)
        written = request.export(to)
    except AnyaccelError as error:
        assert error.hint or error.available
        return
    assert json.loads(json.dumps(written)) == written
    if to == "modal":  # Modal's values are requests of this grammar, and its names are those that it documents
        values = [written] if isinstance(written, str) else written
        assert all(value.partition(":")[0] in (*NAMES, "any") for value in values)
        assert DeviceRequest.parse(values).export("modal") == written


def test_ray_itself_accepts_the_options():
    options = pytest.importorskip("ray._common.ray_option_utils")
    accelerators = pytest.importorskip("ray.util.accelerators")
    constants = {value for name, value in vars(accelerators).items() if name.isupper()}
    for request in ("H100:2 mem=64GB cores=8", "A100", "any", "cpu cores=2", "T4:4", "L4", "V100", "P100", "A10G"):
        made = exported(request, "ray")
        options.validate_task_options(made, in_options=False)
        options.validate_actor_options(made, in_options=False)
        assert made.get("accelerator_type", "A100") in constants
    with pytest.raises(ValueError, match="no_such_option"):
        options.validate_task_options({"no_such_option": 1}, in_options=False)
