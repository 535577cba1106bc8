"""One model of each of many families of timm."""

from __future__ import annotations

import pytest

from .conftest import chosen, library

torch = pytest.importorskip("torch")

from . import rows  # noqa: E402
from .classifiers import check_classifier, without_dropout  # noqa: E402

timm = library("timm")
pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own

MODELS = (
    *("botnet26t_256", "cait_xxs24_224", "convit_tiny", "convnext_atto", "crossvit_tiny_240", "densenet121", "dla34"),
    *(
        "dpn48b",
        "edgenext_xx_small",
        "efficientformer_l1",
        "efficientformerv2_s0",
        "efficientnet_b0",
        "efficientvit_b0",
    ),
    *("fastvit_t8", "ghostnet_050", "hrnet_w18_small", "levit_128s", "mixer_s32_224", "mobilenetv3_small_050"),
    *("mobilevit_xxs", "nf_regnet_b0", "pit_ti_224", "poolformer_s12", "pvt_v2_b0", "regnetx_002", "repvgg_a0"),
    *("resnet10t", "rexnet_100", "skresnet18", "tiny_vit_5m_224", "visformer_tiny", "vit_tiny_patch16_224"),
    "xcit_nano_12_p16_224",
)
SMALL = 96
"""Height and width of the images, of models that take any."""


@pytest.mark.parametrize("name", chosen(MODELS, {"mobilenetv3_small_050"}))
def test_a_model_trains_as_by_hand(name: str) -> None:
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=rows.CLASSES)
    settings = model.default_cfg
    size = settings["input_size"][-1] if settings.get("fixed_input_size") else SMALL
    check_classifier(without_dropout(model), size)


def test_there_are_at_least_twenty_families() -> None:
    assert len({timm.models.model_entrypoint(name).__module__ for name in MODELS}) >= 20
