"""Rates that makers state: of the products that the table has, and of no others."""

from __future__ import annotations

import pytest

from anyaccel_resources.compute_rates import compute_rate


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 PCIe", "fp16", 756.5),
        ("NVIDIA H100 NVL", "bf16", None),  # another form, whose rate the table does not have
        ("NVIDIA H200", "bf16", 989.4),
        ("NVIDIA H200 NVL", "bf16", None),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "bf16", None),
        ("Tesla T4", "bf16", None),
        ("Tesla T4", "fp16", 65),
        ("NVIDIA GeForce RTX 4090", "bf16", None),
        ("cpu", "fp32", None),
    ],
)
def test_rates_are_those_that_are_stated_and_no_others(name, dtype, tflops):
    rate = compute_rate(name, dtype)
    assert (rate is None) == (tflops is None)
    assert rate is None or (rate.per_second == tflops * 10**12 and rate.url.startswith("https://") and rate.date)
