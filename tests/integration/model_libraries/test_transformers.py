"""Architectures of transformers, as they are, with inputs by keyword and their own loss, beside a loop by hand."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import chosen, library

torch = pytest.importorskip("torch")

from .by_hand import check_own_loss  # noqa: E402
from .media_models import COMPOSED, IMAGES, SOUND, TIME_SERIES  # noqa: E402
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
    rows, settings = ARCHITECTURES[name]
    inputs = rows()
    check_own_loss(model_of(name, settings), inputs, [column for column in inputs if column in TARGETS])


def test_there_are_at_least_forty_and_the_sample_is_of_them() -> None:
    assert len(ARCHITECTURES) >= 40
    assert ARCHITECTURES.keys() >= SAMPLE
    for kind in (ENCODERS, DECODERS, MIXTURES, ENCODER_DECODERS, IMAGES, SOUND, COMPOSED):
        assert SAMPLE & kind.keys()
