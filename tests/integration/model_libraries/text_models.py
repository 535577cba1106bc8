"""Architectures of transformers for text: by the name of the class, rows of inputs and a tiny configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from . import rows
from .by_hand import Rows

Architecture = tuple[Callable[[], Rows], Mapping[str, Any]]


def tiny(*bases: Mapping[str, Any], **settings: Any) -> dict[str, Any]:
    """Settings of a configuration: those of others, and its own."""
    return {name: value for each in (*bases, settings) for name, value in each.items()}


def encoder_and_decoder(**settings: Any) -> dict[str, Any]:
    """Settings of the encoder, and the same of the decoder."""
    return {f"{part}_{name}": value for part in ("encoder", "decoder") for name, value in settings.items()}


def without(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != name}


SMALL = tiny(
    vocab_size=rows.VOCABULARY,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=40,
)
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BERT = tiny(SMALL, NO_DROPOUT, num_labels=rows.CLASSES)
SPANS = tiny(BERT, num_labels=2)
EMBEDDED = tiny(BERT, embedding_size=8)
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = tiny(SMALL, SPECIAL, num_key_value_heads=1)
HEADS_OF_8 = tiny(LLAMA, head_dim=8)
GPT = tiny(
    vocab_size=rows.VOCABULARY,
    n_embd=16,
    n_layer=2,
    n_head=2,
    n_positions=40,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    bos_token_id=1,
    eos_token_id=2,
)
DETERMINISTIC = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
BART = tiny(
    encoder_and_decoder(layers=2, ffn_dim=32, attention_heads=2, layerdrop=0.0),
    DETERMINISTIC,
    vocab_size=rows.VOCABULARY,
    d_model=16,
    max_position_embeddings=40,
    classifier_dropout=0.0,
    pad_token_id=1,
    bos_token_id=0,
    eos_token_id=2,
    decoder_start_token_id=2,
)
T5 = tiny(
    vocab_size=rows.VOCABULARY,
    d_model=16,
    d_kv=8,
    d_ff=32,
    num_layers=2,
    num_heads=2,
    dropout_rate=0.0,
    classifier_dropout=0.0,
    decoder_start_token_id=0,
)
XLM = tiny(
    vocab_size=rows.VOCABULARY,
    emb_dim=16,
    n_layers=2,
    n_heads=2,
    max_position_embeddings=40,
    dropout=0.0,
    attention_dropout=0.0,
    summary_first_dropout=0.0,
    num_labels=rows.CLASSES,
)

ENCODERS: dict[str, Architecture] = {
    "AlbertForSequenceClassification": (rows.classes, tiny(EMBEDDED, classifier_dropout_prob=0.0)),
    "BertForMaskedLM": (rows.language, BERT),
    "BertForMultipleChoice": (rows.choices, BERT),
    "BertForPreTraining": (rows.two_sentences, SPANS),
    "BertForQuestionAnswering": (rows.answers, SPANS),
    "BertForSequenceClassification": (rows.two_texts, BERT),
    "BigBirdForSequenceClassification": (rows.classes, tiny(BERT, attention_type="original_full")),
    "CanineForSequenceClassification": (
        rows.characters,
        tiny(
            without(BERT, "vocab_size"),
            num_hash_buckets=32,
            num_hash_functions=2,
            downsampling_rate=2,
            local_transformer_stride=8,
            upsampling_kernel_size=2,
        ),
    ),
    "ConvBertForSequenceClassification": (rows.classes, tiny(EMBEDDED, num_attention_heads=4)),
    "DebertaForSequenceClassification": (rows.classes, tiny(BERT, pooler_hidden_size=16)),
    "DebertaV2ForSequenceClassification": (
        rows.classes,
        tiny(BERT, pooler_hidden_size=16, relative_attention=True, pos_att_type=["p2c", "c2p"]),
    ),
    "DistilBertForSequenceClassification": (
        rows.classes,
        tiny(
            vocab_size=rows.VOCABULARY,
            dim=16,
            n_layers=2,
            n_heads=2,
            hidden_dim=32,
            dropout=0.0,
            attention_dropout=0.0,
            seq_classif_dropout=0.0,
            num_labels=rows.CLASSES,
        ),
    ),
    "ElectraForPreTraining": (rows.replaced, EMBEDDED),
    "ErnieForSequenceClassification": (rows.classes, BERT),
    "FNetForSequenceClassification": (
        rows.classes_unmasked,
        tiny(SMALL, hidden_dropout_prob=0.0, num_labels=rows.CLASSES),
    ),
    "FlaubertForSequenceClassification": (rows.classes, XLM),
    "FunnelForSequenceClassification": (
        rows.classes,
        tiny(
            vocab_size=rows.VOCABULARY,
            block_sizes=[1, 1],
            d_model=16,
            n_head=2,
            d_head=8,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            d_inner=32,
            num_labels=rows.CLASSES,
        ),
    ),
    "IBertForSequenceClassification": (rows.classes, BERT),
    "LayoutLMForSequenceClassification": (rows.boxes, BERT),
    "LongformerForSequenceClassification": (
        rows.classes,
        tiny(BERT, max_position_embeddings=60, attention_window=[4, 4]),
    ),
    "LukeForSequenceClassification": (rows.classes, tiny(BERT, entity_vocab_size=10, entity_emb_size=8)),
    "MPNetForSequenceClassification": (rows.classes, BERT),
    "MegatronBertForSequenceClassification": (rows.classes, BERT),
    "MobileBertForSequenceClassification": (
        rows.classes,
        tiny(EMBEDDED, intra_bottleneck_size=8, true_hidden_size=8),
    ),
    "ModernBertForSequenceClassification": (
        rows.classes,
        tiny(SMALL, SPECIAL, cls_token_id=1, sep_token_id=2, num_labels=rows.CLASSES),
    ),
    "RemBertForSequenceClassification": (
        rows.classes,
        tiny(BERT, input_embedding_size=8, output_embedding_size=8, classifier_dropout_prob=0.0),
    ),
    "RoFormerForSequenceClassification": (rows.classes, BERT),
    "RobertaForSequenceClassification": (rows.many_labels, BERT),
    "RobertaForTokenClassification": (rows.of_tokens, BERT),
    "SqueezeBertForSequenceClassification": (
        rows.classes,
        tiny(
            BERT,
            embedding_size=16,
            q_groups=2,
            k_groups=2,
            v_groups=2,
            post_attention_groups=1,
            intermediate_groups=2,
            output_groups=2,
        ),
    ),
    "XLMForSequenceClassification": (rows.classes, XLM),
    "XLMRobertaForSequenceClassification": (rows.classes, BERT),
    "XLNetForSequenceClassification": (
        rows.classes,
        tiny(
            vocab_size=rows.VOCABULARY,
            d_model=16,
            n_layer=2,
            n_head=2,
            d_inner=32,
            dropout=0.0,
            summary_last_dropout=0.0,
            num_labels=rows.CLASSES,
        ),
    ),
}
DECODERS: dict[str, Architecture] = {
    "BioGptForCausalLM": (rows.language, BERT),
    "BloomForCausalLM": (
        rows.language,
        tiny(
            vocab_size=rows.VOCABULARY, hidden_size=16, n_layer=2, n_head=2, hidden_dropout=0.0, attention_dropout=0.0
        ),
    ),
    "CTRLLMHeadModel": (
        rows.language,
        tiny(without(GPT, "attn_pdrop"), dff=32),
    ),
    "CodeGenForCausalLM": (rows.language, tiny(GPT, n_head=4, n_embd=32, rotary_dim=4, n_ctx=40)),
    "CohereForCausalLM": (rows.language, LLAMA),
    "FalconForCausalLM": (rows.language, tiny(SMALL, ffn_hidden_size=32)),
    "GPT2DoubleHeadsModel": (rows.two_heads, tiny(GPT, summary_first_dropout=0.0)),
    "GPT2ForSequenceClassification": (rows.classes, tiny(GPT, num_labels=rows.CLASSES, pad_token_id=0)),
    "GPT2LMHeadModel": (rows.language, GPT),
    "GPTBigCodeForCausalLM": (rows.language, GPT),
    "GPTJForCausalLM": (rows.language, tiny(GPT, rotary_dim=4)),
    "GPTNeoForCausalLM": (
        rows.language,
        tiny(
            SMALL,
            num_layers=2,
            num_heads=2,
            attention_types=[[["global", "local"], 1]],
            window_size=4,
            embed_dropout=0.0,
            resid_dropout=0.0,
            attention_dropout=0.0,
        ),
    ),
    "GPTNeoXForCausalLM": (rows.language, SMALL),
    "Gemma2ForCausalLM": (rows.language, HEADS_OF_8),
    "GemmaForCausalLM": (rows.language, HEADS_OF_8),
    "GraniteForCausalLM": (rows.language, LLAMA),
    "LlamaForCausalLM": (rows.language, LLAMA),
    "LlamaForSequenceClassification": (rows.classes, tiny(LLAMA, num_labels=rows.CLASSES)),
    "Mamba2ForCausalLM": (
        rows.language,
        tiny(
            vocab_size=rows.VOCABULARY,
            hidden_size=16,
            state_size=4,
            num_hidden_layers=2,
            num_heads=4,
            head_dim=8,
            n_groups=1,
            chunk_size=4,
        ),
    ),
    "MambaForCausalLM": (
        rows.language,
        {"vocab_size": rows.VOCABULARY, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 2},
    ),
    "MistralForCausalLM": (rows.language, tiny(LLAMA, sliding_window=4)),
    "MptForCausalLM": (
        rows.language,
        {"vocab_size": rows.VOCABULARY, "d_model": 16, "n_heads": 2, "n_layers": 2, "max_seq_len": 40},
    ),
    "OPTForCausalLM": (rows.language, tiny(SMALL, ffn_dim=32, word_embed_proj_dim=16, dropout=0.0)),
    "OlmoForCausalLM": (rows.language, LLAMA),
    "OpenAIGPTLMHeadModel": (rows.language, GPT),
    "Phi3ForCausalLM": (rows.language, LLAMA),
    "PhiForCausalLM": (rows.language, SMALL),
    "Qwen2ForCausalLM": (rows.language, LLAMA),
    "Qwen3ForCausalLM": (rows.language, HEADS_OF_8),
    "RwkvForCausalLM": (rows.language_unmasked, tiny(SMALL, context_length=40)),
    "StableLmForCausalLM": (rows.language, LLAMA),
    "Starcoder2ForCausalLM": (rows.language, tiny(LLAMA, residual_dropout=0.0, embedding_dropout=0.0)),
    "XGLMForCausalLM": (
        rows.language,
        tiny(
            vocab_size=rows.VOCABULARY,
            d_model=16,
            ffn_dim=32,
            num_layers=2,
            attention_heads=2,
            max_position_embeddings=40,
            dropout=0.0,
            attention_dropout=0.0,
        ),
    ),
}
MIXTURES: dict[str, Architecture] = {
    "GptOssForCausalLM": (
        rows.language,
        tiny(HEADS_OF_8, num_local_experts=4, num_experts_per_tok=2, sliding_window=4),
    ),
    "MixtralForCausalLM": (rows.language, tiny(LLAMA, num_local_experts=4, output_router_logits=True)),
    "OlmoeForCausalLM": (
        rows.language,
        tiny(LLAMA, num_experts=4, num_experts_per_tok=2, output_router_logits=True),
    ),
    "PhimoeForCausalLM": (rows.language, tiny(LLAMA, num_local_experts=4)),
    "Qwen2MoeForCausalLM": (
        rows.language,
        tiny(
            LLAMA,
            num_experts=4,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
            output_router_logits=True,
        ),
    ),
    "Qwen3MoeForCausalLM": (
        rows.language,
        tiny(HEADS_OF_8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16),
    ),
    "SwitchTransformersForConditionalGeneration": (
        rows.translation,
        tiny(
            T5,
            num_experts=2,
            expert_capacity=8,
            router_jitter_noise=0.0,
            num_sparse_encoder_layers=1,
            num_sparse_decoder_layers=1,
        ),
    ),
}
ENCODER_DECODERS: dict[str, Architecture] = {
    "BartForConditionalGeneration": (rows.translation, BART),
    "BartForSequenceClassification": (partial(rows.classes_at_end, 2), tiny(BART, num_labels=rows.CLASSES)),
    "BlenderbotSmallForConditionalGeneration": (rows.translation, BART),
    "LEDForConditionalGeneration": (
        rows.translation,
        tiny(
            without(BART, "max_position_embeddings"),
            max_encoder_position_embeddings=40,
            max_decoder_position_embeddings=40,
            attention_window=4,
        ),
    ),
    "LongT5ForConditionalGeneration": (rows.translation, tiny(T5, local_radius=3)),
    "M2M100ForConditionalGeneration": (rows.translation, BART),
    "MBartForConditionalGeneration": (rows.translation, BART),
    "MT5ForConditionalGeneration": (rows.translation, T5),
    "MarianMTModel": (rows.translation, BART),
    "PLBartForConditionalGeneration": (rows.translation, BART),
    "PegasusForConditionalGeneration": (rows.translation, BART),
    "ProphetNetForConditionalGeneration": (
        rows.translation,
        tiny(
            encoder_and_decoder(ffn_dim=32),
            DETERMINISTIC,
            vocab_size=rows.VOCABULARY,
            hidden_size=16,
            max_position_embeddings=40,
            num_encoder_layers=2,
            num_encoder_attention_heads=2,
            num_decoder_layers=2,
            num_decoder_attention_heads=2,
            decoder_start_token_id=0,
        ),
    ),
    "T5ForConditionalGeneration": (rows.translation, T5),
    "T5ForSequenceClassification": (partial(rows.classes_at_end, 1), tiny(T5, num_labels=rows.CLASSES)),
    "UMT5ForConditionalGeneration": (rows.translation, T5),
}
