"""Architectures of transformers, as they are, with inputs by keyword and their own loss, beside a loop by hand."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import chosen, library

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

import anyaccel as aa  # noqa: E402

from . import rows  # noqa: E402
from .by_hand import Batch, check_custom_loss, check_equal  # noqa: E402
from .media_models import COMPOSED, IMAGES, SOUND, TIME_SERIES, clip  # noqa: E402
from .text_models import DECODERS, ENCODER_DECODERS, ENCODERS, MIXTURES  # noqa: E402

transformers = library("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own: deprecations, hints on kernels

ARCHITECTURES: dict[str, tuple[Any, Any]] = {
    **ENCODERS,
    **DECODERS,
    **MIXTURES,
    **ENCODER_DECODERS,
    **IMAGES,
    **SOUND,
    **TIME_SERIES,
    **COMPOSED,
}
SAMPLE = {
    *("BertForSequenceClassification", "LlamaForCausalLM", "MixtralForCausalLM", "T5ForConditionalGeneration"),
    *("BartForSequenceClassification", "RwkvForCausalLM", "ViTForImageClassification", "Wav2Vec2ForCTC"),
    "LlavaForConditionalGeneration",
}
TARGETS = {
    *("labels", "start_positions", "end_positions", "next_sentence_label", "mc_labels"),
    *("future_values", "bool_masked_pos"),
}


def model_of(name: str, settings: Any) -> Any:
    """A model with random weights, in evaluation mode, as `from_pretrained` gives it."""
    model_class = getattr(transformers, name)
    config = settings(transformers) if callable(settings) else model_class.config_class(**settings)
    torch.manual_seed(0)
    return model_class(config).eval()


@pytest.mark.parametrize("name", chosen(ARCHITECTURES, SAMPLE))
def test_an_architecture_trains_as_by_hand(name: str) -> None:
    made, settings = ARCHITECTURES[name]
    inputs = made()
    check_custom_loss(model_of(name, settings), inputs, [column for column in inputs if column in TARGETS])


@pytest.mark.parametrize("name", chosen(["CLIP", "Siglip"], ()))
def test_two_encoders_train_by_a_contrastive_loss_of_the_user(name: str) -> None:
    """The loss of these models asks for an argument that is no tensor, `return_loss=True`, which a node cannot give."""

    def contrastive(texts: Any, images: Any) -> Any:
        scores = 5 * F.normalize(texts, dim=-1) @ F.normalize(images, dim=-1).T
        return F.cross_entropy(scores, torch.arange(len(texts)))

    def in_a_node(model: Any, data: aa.FeatureSet) -> tuple[aa.ModelNode, Any]:
        node = aa.ModelNode("net", model, {name: data.reference(name) for name in rows.pairs()})
        return node, aa.AppliedLoss(contrastive, on="net", inputs=["outputs.text_embeds", "outputs.image_embeds"])

    def loss_of(model: Any, batch: Batch) -> Any:
        returned = model(**batch)
        return contrastive(returned.text_embeds, returned.image_embeds)

    torch.manual_seed(0)
    model = getattr(transformers, f"{name}Model")(clip(transformers, name)).eval()
    check_equal(model, rows.pairs(), [], in_a_node, loss_of)


def test_there_are_at_least_forty_and_the_sample_is_of_them() -> None:
    assert len(ARCHITECTURES) >= 40
    assert ARCHITECTURES.keys() >= SAMPLE
    for kind in (ENCODERS, DECODERS, MIXTURES, ENCODER_DECODERS, IMAGES, SOUND, COMPOSED):
        assert SAMPLE & kind.keys()
