"""The table of products: every figure has a source and a date, and drivers' names are found."""

from __future__ import annotations

from datetime import date

import pytest

from anyaccel_resources import products
from anyaccel_resources.products import product_named, product_of


def test_every_figure_has_an_address_and_a_date():
    for product in products():
        assert product.drivers, product.name
        figures = {
            name for name in ("drivers", "memory_gb", "compute_capability", "capabilities") if getattr(product, name)
        }
        assert product.sources.keys() >= figures | ({"upgrades"} if product.upgrades else set()), product.name
        for source in product.sources.values():
            assert source["url"].startswith("https://") and date.fromisoformat(source["date"]) <= date.today()


def test_names_and_aliases_stand_for_one_product_each():
    spellings = [name.lower() for product in products() for name in (product.name, *product.aliases)]
    assert len(spellings) == len(set(spellings))
    for product in products():
        assert all(product_named(name) is product for name in (product.name, product.name.lower(), *product.aliases))
        assert all(product_named(name) is not None for name in product.upgrades)
        assert product.generation_order >= 0 and list(product.memory_gb) == sorted(product.memory_gb)
    assert product_named("H10O") is None and product_named("") is None


@pytest.mark.parametrize(
    ("reported", "name", "gb"),
    [
        ("NVIDIA H100 80GB HBM3", "H100", 80),
        ("NVIDIA H100 PCIe", "H100", 0),
        ("NVIDIA A100-SXM4-40GB", "A100", 40),
        ("NVIDIA A100 80GB PCIe", "A100", 80),
        ("Tesla T4", "T4", 0),
        ("Tesla V100-SXM2-16GB", "V100", 16),
        ("NVIDIA A10G", "A10G", 0),
        ("NVIDIA H200", "H200", 0),
        ("NVIDIA L40S", "L40S", 0),
        ("NVIDIA GeForce RTX 4090", "RTX-4090", 0),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada", 0),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000", 0),
        ("AMD Instinct MI300X OAM", "MI300X", 0),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "H100", 0),
    ],
)
def test_what_drivers_report_is_a_product(reported, name, gb):
    product, size = product_of(reported)
    assert product is not None and (product.name, size) == (name, gb)


@pytest.mark.parametrize("reported", ["", "Quadro P400", "NVIDIA H100X", "Apple GPU", "x86_64"])
def test_what_is_not_in_the_table_is_no_product(reported):
    assert product_of(reported)[0] is None


@pytest.mark.parametrize(
    ("newer", "older", "expected"),
    [
        ("B200", "H100", True),
        ("B300", "B200", True),
        ("H200", "H100", False),  # of one generation
        ("L4", "A100", False),  # newer, with less memory
        ("L4", "A10", True),
        ("RTX-5090", "A10", False),  # of another segment
        ("MI350X", "H100", False),  # of another vendor
        ("H100", "B200", False),
    ],
)
def test_newer_means_a_later_generation_of_the_same_sort_with_as_much_memory(newer, older, expected):
    first, second = product_named(newer), product_named(older)
    assert first is not None and second is not None
    assert first.is_newer(second) is expected
