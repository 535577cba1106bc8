"""Architectures of transformers for images, sound, series and several of these, as in `text_models`."""

from __future__ import annotations

from functools import partial
from typing import Any

from . import rows
from .text_models import (
    BART,
    BERT,
    DETERMINISTIC,
    GPT,
    HEADS_OF_8,
    LLAMA,
    NO_DROPOUT,
    SMALL,
    Architecture,
    encoder_and_decoder,
    tiny,
    without,
)

LABELS = {"num_labels": rows.CLASSES}
NO_PATH_DROPOUT = {"drop_path_rate": 0.0}
LAYERS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
SEEN = tiny(LAYERS, image_size=32, patch_size=8)
VIT = tiny(SEEN, NO_DROPOUT, LABELS)
VIDEO = tiny(VIT, image_size=16, num_frames=2)
TWO_STAGES = tiny(LABELS, hidden_sizes=[8, 16], depths=[1, 1])
FOUR_STAGES = tiny(LABELS, hidden_sizes=[8, 8, 16, 16], depths=[1] * 4, num_attention_heads=[1, 1, 2, 2])
WINDOWS = tiny(
    LABELS, NO_PATH_DROPOUT, image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4
)
WAVES = tiny(
    LAYERS,
    LABELS,
    vocab_size=20,
    classifier_proj_size=16,
    pad_token_id=0,
    conv_dim=(16, 16),
    conv_kernel=(10, 3),
    conv_stride=(5, 2),
    num_feat_extract_layers=2,
    num_conv_pos_embeddings=4,
    num_conv_pos_embedding_groups=2,
    conv_pos_kernel_size=3,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    activation_dropout=0.0,
    feat_proj_dropout=0.0,
    final_dropout=0.0,
    layerdrop=0.0,
    mask_time_prob=0.0,
    apply_spec_augment=False,
)
SPEECH = without(BART, "max_position_embeddings")
SERIES = tiny(
    encoder_and_decoder(layers=1, ffn_dim=16, attention_heads=2, layerdrop=0.0),
    DETERMINISTIC,
    prediction_length=4,
    context_length=8,
    lags_sequence=[1, 2],
    num_time_features=1,
    d_model=16,
)

IMAGES: dict[str, Architecture] = {
    "BeitForImageClassification": (rows.images, tiny(VIT, NO_PATH_DROPOUT)),
    "BitForImageClassification": (rows.images, tiny(TWO_STAGES, embedding_size=8, num_groups=2)),
    "ConvNextForImageClassification": (rows.images, tiny(TWO_STAGES, num_stages=2)),
    "ConvNextV2ForImageClassification": (rows.images, tiny(TWO_STAGES, num_stages=2)),
    "DeiTForImageClassification": (rows.images, VIT),
    "Dinov2ForImageClassification": (rows.images, tiny(VIT, mlp_ratio=2)),
    "EfficientNetForImageClassification": (
        rows.images,
        tiny(
            LABELS,
            width_coefficient=0.25,
            depth_coefficient=0.25,
            image_size=32,
            hidden_dim=320,
            dropout_rate=0.0,
            drop_connect_rate=0.0,
        ),
    ),
    "FocalNetForImageClassification": (
        rows.images,
        tiny(TWO_STAGES, NO_PATH_DROPOUT, image_size=32, embed_dim=8, focal_levels=[2, 2], focal_windows=[3, 3]),
    ),
    "MobileNetV1ForImageClassification": (
        rows.images,
        tiny(LABELS, depth_multiplier=0.25, classifier_dropout_prob=0.0),
    ),
    "MobileViTForImageClassification": (
        rows.images,
        tiny(
            LABELS,
            hidden_sizes=[16] * 3,
            neck_hidden_sizes=[8] * 6 + [16],
            image_size=32,
            num_attention_heads=2,
            hidden_dropout_prob=0.0,
            classifier_dropout_prob=0.0,
        ),
    ),
    "PoolFormerForImageClassification": (
        partial(rows.images, 64),
        tiny(LABELS, NO_PATH_DROPOUT, hidden_sizes=[8] * 4, depths=[1] * 4),
    ),
    "PvtForImageClassification": (rows.images, tiny(FOUR_STAGES, image_size=32)),
    "PvtV2ForImageClassification": (rows.images, FOUR_STAGES),
    "RegNetForImageClassification": (rows.images, tiny(TWO_STAGES, embedding_size=8, groups_width=4)),
    "ResNetForImageClassification": (rows.images, tiny(TWO_STAGES, embedding_size=8)),
    "SegformerForSemanticSegmentation": (
        rows.pixels,
        tiny(FOUR_STAGES, NO_PATH_DROPOUT, decoder_hidden_size=16, classifier_dropout_prob=0.0),
    ),
    "SwinForImageClassification": (rows.images, WINDOWS),
    "Swinv2ForImageClassification": (rows.images, WINDOWS),
    "TimesformerForVideoClassification": (rows.videos, VIDEO),
    "ViTForImageClassification": (rows.images, VIT),
    "ViTForMaskedImageModeling": (rows.masked_patches, tiny(VIT, encoder_stride=8)),
    "ViTMAEForPreTraining": (
        rows.noisy_patches,
        tiny(
            SEEN,
            NO_DROPOUT,
            decoder_hidden_size=16,
            decoder_num_hidden_layers=1,
            decoder_num_attention_heads=2,
            decoder_intermediate_size=32,
        ),
    ),
    "VideoMAEForVideoClassification": (rows.videos, tiny(VIDEO, tubelet_size=2)),
    "VivitForVideoClassification": (rows.videos, tiny(VIDEO, tubelet_size=[2, 8, 8])),
}
SOUND: dict[str, Architecture] = {
    "ASTForAudioClassification": (
        partial(rows.spectrum_classes, "input_values", 32),
        tiny(VIT, num_mel_bins=16, max_length=32, frequency_stride=8, time_stride=8),
    ),
    "Data2VecAudioForSequenceClassification": (rows.sounds, WAVES),
    "HubertForSequenceClassification": (rows.sounds, WAVES),
    "SEWDForSequenceClassification": (rows.sounds, tiny(WAVES, squeeze_factor=2)),
    "SEWForSequenceClassification": (rows.sounds, tiny(WAVES, squeeze_factor=2)),
    "Speech2TextForConditionalGeneration": (
        rows.spectra_of_lengths,
        tiny(
            SPEECH,
            input_feat_per_channel=8,
            num_conv_layers=2,
            conv_kernel_sizes=(3, 3),
            conv_channels=16,
            max_source_positions=40,
            max_target_positions=40,
        ),
    ),
    "UniSpeechForSequenceClassification": (rows.sounds, WAVES),
    "Wav2Vec2BertForSequenceClassification": (
        partial(rows.spectrum_classes, "input_features", 20),
        tiny(
            WAVES,
            feature_projection_input_dim=16,
            conformer_conv_dropout=0.0,
            conv_depthwise_kernel_size=3,
            use_intermediate_ffn_before_adapter=False,
        ),
    ),
    "Wav2Vec2ForAudioFrameClassification": (rows.frames, WAVES),
    "Wav2Vec2ForCTC": (rows.spoken, WAVES),
    "Wav2Vec2ForSequenceClassification": (rows.sounds_of_lengths, WAVES),
    "WavLMForSequenceClassification": (rows.sounds, WAVES),
    "WhisperForConditionalGeneration": (
        partial(rows.spectra, 8, 60),
        tiny(SPEECH, num_mel_bins=8, max_source_positions=30, max_target_positions=20, apply_spec_augment=False),
    ),
}
TIME_SERIES: dict[str, Architecture] = {
    "InformerForPrediction": (rows.series, SERIES),
    "PatchTSTForPrediction": (
        rows.patched_series,
        tiny(
            num_input_channels=2,
            context_length=16,
            prediction_length=4,
            patch_length=4,
            d_model=16,
            patch_stride=4,
            num_hidden_layers=1,
            num_attention_heads=2,
            ffn_dim=16,
            loss="mse",
            attention_dropout=0.0,
            ff_dropout=0.0,
            head_dropout=0.0,
        ),
    ),
    "TimeSeriesTransformerForPrediction": (rows.series, SERIES),
}


# -- several at once: configurations that hold others ------------------------------------------------------------------


def llava(transformers: Any) -> Any:
    vision = transformers.CLIPVisionConfig(**tiny(SEEN, image_size=16))
    text = transformers.LlamaConfig(**LLAMA)
    return transformers.LlavaConfig(
        vision_config=vision, text_config=text, image_token_id=rows.IMAGE_TOKEN, vision_feature_layer=-1
    )


def paligemma(transformers: Any) -> Any:
    vision, text = transformers.SiglipVisionConfig(**SEEN), transformers.GemmaConfig(**HEADS_OF_8)
    parts = {"vision_config": vision.to_dict(), "text_config": text.to_dict()}
    return transformers.PaliGemmaConfig(**parts, image_token_index=rows.IMAGE_TOKEN, projection_dim=16)


def git(transformers: Any) -> Any:
    return transformers.GitConfig(vision_config=SEEN, **SMALL, **NO_DROPOUT, bos_token_id=1, eos_token_id=2)


def blip(transformers: Any) -> Any:
    text = tiny(SMALL, NO_DROPOUT, encoder_hidden_size=16, bos_token_id=1, pad_token_id=0, eos_token_id=2)
    parts = {"text_config": tiny(text, sep_token_id=2), "vision_config": SEEN}
    return transformers.BlipConfig(**parts, projection_dim=8, image_text_hidden_size=8)


def image_captions(transformers: Any) -> Any:
    parts = transformers.ViTConfig(**VIT), transformers.GPT2Config(**GPT)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(*parts)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    return config


def speech_to_text(transformers: Any) -> Any:
    parts = transformers.Wav2Vec2Config(**WAVES), transformers.BertConfig(**BERT)
    config = transformers.SpeechEncoderDecoderConfig.from_encoder_decoder_configs(*parts)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    return config


def clip(transformers: Any, name: str = "CLIP") -> Any:
    text = tiny(SMALL, eos_token_id=2, pad_token_id=1, bos_token_id=0)
    config = getattr(transformers, f"{name}Config")
    return config(text_config=text, vision_config=SEEN)


COMPOSED: dict[str, tuple[Any, Any]] = {
    "BlipForConditionalGeneration": (rows.captions, blip),
    "GitForCausalLM": (rows.captions, git),
    "LayoutLMv3ForSequenceClassification": (
        rows.documents,
        tiny(BERT, coordinate_size=2, shape_size=4, input_size=32, patch_size=16),
    ),
    "LlavaForConditionalGeneration": (partial(rows.prompts, 4, 16, 12), llava),
    "LxmertForQuestionAnswering": (
        rows.objects,
        tiny(
            without(BERT, "num_hidden_layers"),
            visual_feat_dim=8,
            num_qa_labels=rows.CLASSES,
            l_layers=1,
            x_layers=1,
            r_layers=1,
        ),
    ),
    "PaliGemmaForConditionalGeneration": (partial(rows.prompts_with_types, 16, 32, 24), paligemma),
    "SpeechEncoderDecoderModel": (rows.heard, speech_to_text),
    "ViltForQuestionAnswering": (
        rows.questions_on_images,
        tiny(VIT, vocab_size=rows.VOCABULARY, max_position_embeddings=40, max_image_length=-1),
    ),
    "VisionEncoderDecoderModel": (rows.read_images, image_captions),
    "VisualBertForQuestionAnswering": (
        partial(rows.regions, 8, labels=rows.fractions(rows.CLASSES)),
        tiny(BERT, visual_embedding_dim=8),
    ),
}
