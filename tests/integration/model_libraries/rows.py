"""Random rows of the inputs that models of libraries take."""

from __future__ import annotations

import numpy as np

from .by_hand import ROWS, Rows

VOCABULARY, LENGTH, CLASSES = 60, 8, 3
SPECIAL = 4
"""Tokens below are special: padding, begin, end."""
IMAGE_TOKEN = 5


def random() -> np.random.Generator:
    return np.random.default_rng(0)


def ids(length: int = LENGTH, lowest: int = SPECIAL) -> np.ndarray:
    return random().integers(lowest, VOCABULARY, (ROWS, length))


def mask(length: int = LENGTH) -> np.ndarray:
    """Every second row is two shorter."""
    ones = np.ones((ROWS, length), "int64")
    ones[::2, -2:] = 0
    return ones


def kinds(n_classes: int = CLASSES) -> np.ndarray:
    return random().integers(0, n_classes, ROWS)


def floats(*shape: int) -> np.ndarray:
    return random().standard_normal((ROWS, *shape)).astype("float32")


def fractions(*shape: int) -> np.ndarray:
    return random().random((ROWS, *shape)).astype("float32")


# -- text --------------------------------------------------------------------------------------------------------------


def text() -> Rows:
    return {"input_ids": ids(), "attention_mask": mask()}


def classes() -> Rows:
    return {**text(), "labels": kinds()}


def classes_unmasked() -> Rows:
    return {"input_ids": ids(), "labels": kinds()}


def classes_at_end(end: int) -> Rows:
    tokens = ids()
    tokens[:, -1] = end
    return {"input_ids": tokens, "labels": kinds()}


def many_labels() -> Rows:
    return {**text(), "labels": fractions(CLASSES)}


def two_texts() -> Rows:
    types = np.repeat([[0] * (LENGTH // 2) + [1] * (LENGTH // 2)], ROWS, axis=0)
    return {"labels": kinds(), "token_type_ids": types, **text()}  # in another order than the model's


def choices() -> Rows:
    return {"input_ids": random().integers(SPECIAL, VOCABULARY, (ROWS, CLASSES, LENGTH)), "labels": kinds()}


def of_tokens() -> Rows:
    return {**text(), "labels": random().integers(0, CLASSES, (ROWS, LENGTH))}


def replaced() -> Rows:
    return {**text(), "labels": random().integers(0, 2, (ROWS, LENGTH))}


def answers() -> Rows:
    middle = LENGTH // 2
    start, end = random().integers(0, middle, ROWS), random().integers(middle, LENGTH, ROWS)
    return {**text(), "start_positions": start, "end_positions": end}


def language() -> Rows:
    """Labels without the padding."""
    return {**text(), "labels": np.where(mask() == 1, ids(), -100)}


def language_unmasked() -> Rows:
    return {"input_ids": ids(), "labels": ids()}


def two_sentences() -> Rows:
    return {**language(), "next_sentence_label": kinds(2)}


def two_heads() -> Rows:
    tokens = random().integers(SPECIAL, VOCABULARY, (ROWS, 2, LENGTH))
    last = np.full((ROWS, 2), LENGTH - 1)
    return {"input_ids": tokens, "mc_token_ids": last, "labels": tokens, "mc_labels": kinds(2)}


def boxes() -> Rows:
    return {**classes(), "bbox": np.sort(random().integers(0, 900, (ROWS, LENGTH, 4)), axis=-1)}


def characters() -> Rows:
    return {"input_ids": ids(16), "attention_mask": mask(16), "labels": kinds()}


def translated() -> np.ndarray:
    tokens = ids(6)
    tokens[::2, 4:] = -100
    return tokens


def translation() -> Rows:
    return {**text(), "labels": translated()}


# -- images, sound, series ---------------------------------------------------------------------------------------------


def images(size: int = 32) -> Rows:
    return {"pixel_values": floats(3, size, size), "labels": kinds()}


def pixels(size: int = 32) -> Rows:
    return {"pixel_values": floats(3, size, size), "labels": random().integers(0, CLASSES, (ROWS, size, size))}


def masked_patches() -> Rows:
    return {"pixel_values": floats(3, 32, 32), "bool_masked_pos": random().random((ROWS, 16)) < 0.5}


def noisy_patches() -> Rows:
    return {"pixel_values": floats(3, 32, 32), "noise": fractions(16)}


def videos() -> Rows:
    return {"pixel_values": floats(2, 3, 16, 16), "labels": kinds()}


def sounds() -> Rows:
    return {"input_values": floats(800), "labels": kinds()}


def sounds_of_lengths() -> Rows:
    return {**sounds(), "attention_mask": np.where(np.arange(800) < 800 - 100 * kinds(4)[:, None], 1, 0)}


def spoken() -> Rows:
    """Letters for a loss over alignments; half of the rows have three, the others five."""
    letters = np.where(np.arange(5) < np.array([[3], [5]] * (ROWS // 2)), random().integers(1, 20, (ROWS, 5)), -100)
    return {**sounds_of_lengths(), "labels": letters}


def frames() -> Rows:
    return {
        "input_values": floats(800),
        "labels": np.eye(CLASSES, dtype="float32")[random().integers(0, 3, (ROWS, 79))],
    }


def spectra(bins: int, length: int) -> Rows:
    return {"input_features": floats(bins, length), "labels": translated()}


def spectra_of_lengths() -> Rows:
    return {"input_features": floats(40, 8), "attention_mask": mask(40), "labels": translated()}


def spectrum_classes(name: str, length: int) -> Rows:
    return {name: floats(length, 16), "labels": kinds()}


def series() -> Rows:
    past = {"past_values": floats(10), "past_time_features": fractions(10, 1)}
    observed = np.ones((ROWS, 10), "float32")
    return {**past, "past_observed_mask": observed, "future_values": floats(4), "future_time_features": fractions(4, 1)}


def patched_series() -> Rows:
    return {"past_values": floats(16, 2), "future_values": floats(4, 2)}


# -- several at once ---------------------------------------------------------------------------------------------------


def questions_on_images() -> Rows:
    return {**text(), "pixel_values": floats(3, 32, 32), "labels": fractions(CLASSES)}


def documents() -> Rows:
    return {**boxes(), "pixel_values": floats(3, 32, 32)}


def captions() -> Rows:
    return {**language(), "pixel_values": floats(3, 32, 32)}


def read_images() -> Rows:
    return {"pixel_values": floats(3, 32, 32), "labels": translated()}


def heard() -> Rows:
    return {"input_values": floats(800), "labels": translated()}


def regions(features: int, **labels: np.ndarray) -> Rows:
    return {**text(), "visual_embeds": floats(3, features), **labels}


def objects() -> Rows:
    return {**text(), "visual_feats": floats(3, 8), "visual_pos": fractions(3, 4), "labels": kinds()}


def prompts(patches: int, size: int, length: int) -> Rows:
    """Text with a token for each patch of an image, after the first."""
    tokens = ids(length, lowest=IMAGE_TOKEN + 1)
    tokens[:, 1 : patches + 1] = IMAGE_TOKEN
    labels = np.where(tokens == IMAGE_TOKEN, -100, tokens)
    return {
        "input_ids": tokens,
        "attention_mask": np.ones_like(tokens),
        "pixel_values": floats(3, size, size),
        "labels": labels,
    }


def prompts_with_types(patches: int, size: int, length: int) -> Rows:
    types = np.repeat((np.arange(length) > patches + 2).astype("int64")[None], ROWS, axis=0)
    return {**prompts(patches, size, length), "token_type_ids": types}


def pairs() -> Rows:
    tokens = ids()
    tokens[:, -1] = 2  # the end, whose place is that of the whole text
    return {"input_ids": tokens, "pixel_values": floats(3, 32, 32)}
