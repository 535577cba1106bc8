"""All classifiers of torchvision with fewer than 20 million parameters, and those with auxiliary heads."""

from __future__ import annotations

import pytest

from .conftest import chosen, library

torch = pytest.importorskip("torch")

from . import rows  # noqa: E402
from .classifiers import check_classifier, without_dropout  # noqa: E402

models = library("torchvision").models
pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own, of initial weights that take long

LARGEST = 20_000_000
HEADS = {"googlenet": ["scores", "second", "first"], "inception_v3": ["scores", "auxiliary"]}
SIZES = {"inception_v3": 299}  # its auxiliary head takes no less
SAMPLE = {"googlenet", "squeezenet1_1"}


def small() -> list[str]:
    """Names of the classifiers whose trained weights are fewer than that."""
    names = models.list_models(module=models)
    sizes = {name: next(iter(models.get_model_weights(name))).meta["num_params"] for name in names}
    return [name for name, size in sizes.items() if size < LARGEST]


@pytest.mark.parametrize("name", chosen(sorted({*small(), *HEADS}), SAMPLE))
def test_a_classifier_trains_as_by_hand(name: str) -> None:
    torch.manual_seed(0)
    settings = {"init_weights": False} if name in HEADS else {}  # theirs takes a minute
    model = models.get_model(name, weights=None, num_classes=rows.CLASSES, **settings)
    check_classifier(without_dropout(model), SIZES.get(name, 64), HEADS.get(name))
