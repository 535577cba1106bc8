"""PretrainedLoss: the rules of `fit` for transformers models, which compute their own loss."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from anyaccel.data.roles import listed
from anyaccel.errors import ColumnError, ConfigError, DataError, NaNWarning, PhaseError
from anyaccel.fitting import ModelLoss
from anyaccel.metrics import Metric
from anyaccel.results import EvalResults
from anyaccel.user_level import user_level

IGNORED = -100
"""Label that losses of transformers ignore."""
CLASSIFIERS = ("SequenceClassification", "ImageClassification", "AudioClassification", "VideoClassification")


class PretrainedLoss(ModelLoss):
    """How to train and evaluate a transformers model.

    Args:
        model: PreTrainedModel with a head that computes a loss.
    """

    mask, masked = "attention_mask", "input_ids"
    integers = "int64"  # as its collators create them, regardless of the stored dtype

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        config = model.config
        if getattr(config, "ctc_loss_reduction", "mean") != "mean" and "ForCTC" in self.name:
            raise PhaseError(
                f"the loss of {self.name} is a sum over a batch, so it would depend on the batch size",
                hint="set model.config.ctc_loss_reduction = 'mean'",
            )
        pad = getattr(config, "pad_token_id", None)
        masks = ("attention_mask", "decoder_attention_mask", "special_tokens_mask", "global_attention_mask")
        decoder = getattr(config, "decoder_start_token_id", None) if pad is None else pad
        self.pads = {
            "input_ids": 0 if pad is None else pad,
            "decoder_input_ids": 0 if decoder is None else decoder,
            **dict.fromkeys((*masks, "token_type_ids", "position_ids", "bbox"), 0),
            **dict.fromkeys(self.labels, IGNORED),
        }

    # -- labels ----------------------------------------------------------------------------------------------------

    def label_names(self) -> Sequence[str]:
        """Return the arguments that transformers uses for labels."""
        from transformers.utils import find_labels

        return tuple(find_labels(type(self.model)))

    def other_label_names(self, argument: str) -> Sequence[str]:
        """Return `label` and `label_ids`, which the collators of transformers rename too."""
        return ("label", "label_ids") if argument == "labels" else ()

    @property
    def _is_encoder_decoder(self) -> bool:
        return bool(getattr(self.model.config, "is_encoder_decoder", False))

    @cached_property
    def _shifts(self) -> bool:
        """Whether the loss compares the outputs at one token with the label of the next.

        Determined by a call with only the first label set: a model that shifts then has a mean over no labels.
        Names do not show it: some classes for causal language models shift, and some expect shifted labels.
        """
        import torch
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        if self._is_encoder_decoder:
            return False
        model, modes = self.model, {module: module.training for module in self.model.modules()}
        ids = torch.ones(1, 4, dtype=torch.int64, device=model.device)
        labels = torch.where(torch.arange(4, device=model.device) == 0, ids, IGNORED)
        try:
            model.eval()
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                loss = model(input_ids=ids, labels=labels)["loss"]
            return not bool(torch.isfinite(loss))
        except Exception:  # a model that needs more than tokens, or has no values yet
            return self.name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        finally:
            for module, mode in modes.items():
                module.training = mode

    def counted(self, labels: np.ndarray, lengths: np.ndarray | None) -> np.ndarray | None:
        """Return which labels are not -100, without the first of each row in a model that predicts the next token."""
        if labels.dtype.kind not in "iu" or "Segmentation" in self.name:
            return None
        counted: np.ndarray = labels != IGNORED
        per_token = lengths is not None or labels.ndim > 1
        if per_token and self._shifts and lengths is not None:
            counted = counted.copy()
            counted[np.concatenate([[0], np.cumsum(lengths)[:-1]])] = False
        elif per_token and self._shifts:
            counted = counted.copy()
            counted[:, 0] = False
        return counted

    def labels_from_input(self, values: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """Return the tokens themselves, and -100 where the attention mask is 0."""
        if not self._shifts:
            raise PhaseError(
                f"{self.name} does not predict the next token, so it would learn to repeat its input",
                hint="create the labels with a collator: DataLoader(dataset, "
                "collate_fn=DataCollatorForLanguageModeling("
                "tokenizer))",
            )
        tokens = values.astype(np.int64)
        return tokens if mask is None else np.where(mask == 0, IGNORED, tokens)

    # -- checks ----------------------------------------------------------------------------------------------------

    def no_labels(self, columns: Sequence[str]) -> ColumnError:
        """Return the error for data without labels; a model that predicts the next token can use its input."""
        if self.labels == ("labels",) and "input_ids" in columns and self._shifts:
            return ColumnError(
                f"{self.name} computes its loss with 'labels', but no column has this name",
                available=listed(columns),
                hint="write target='input_ids' to predict each next token of the input",
            )
        return super().no_labels(columns)

    def no_inputs(self, columns: Sequence[str]) -> ColumnError:
        text = next((name for name in columns if name not in ("label", "label_ids", *self.labels)), "text")
        error = super().no_inputs(columns)
        if "input_ids" not in self.arguments:
            return error
        hint = f"tokenize it: dataset.map(lambda rows: tokenizer(rows[{text!r}], truncation=True), batched=True)"
        return ColumnError(error.problem, available=error.available, hint=hint)

    def no_numbers(self, argument: str, column: str, values: Any) -> DataError:
        error = super().no_numbers(argument, column, values)
        if argument not in self.labels or "dict for each row" in error.problem:
            return error
        hint = (
            "convert each label to its number: dataset.map(lambda row: "
            f"{{'labels': model.config.label2id[row[{column!r}]]}})"
        )
        return ColumnError(error.problem, hint=hint)

    def nothing_counts(self, column: str, rows: np.ndarray | None, where: Any) -> DataError:
        error = super().nothing_counts(column, rows, where)
        labels = f"row[{column!r}][1:]" if self._shifts else f"row[{column!r}]"
        hint = f"leave such rows out: dataset.filter(lambda row: any(label != -100 for label in {labels}))"
        cause = "the first label of a row is ignored" if self._shifts else "-100 is ignored"
        return DataError(error.problem, cause=cause, hint=hint)

    def check(self, columns: Mapping[str, Any]) -> None:
        """Refuse tokens outside of the vocabulary, rows with more tokens than positions, and wrong labels."""
        ids = columns.get("input_ids")
        embeddings = None if ids is None else self.model.get_input_embeddings()
        vocabulary = getattr(embeddings, "num_embeddings", None)
        if ids is not None and vocabulary is not None:
            self._check_range("input_ids", ids, vocabulary, f"the vocabulary of {self.name} has {vocabulary} tokens")
        longest = None if ids is None else _longest(ids)
        places = self._places
        if longest is not None and places is not None and longest > places:
            raise DataError(
                f"a row of 'input_ids' has {longest} tokens, but {self.name} has {places} positions",
                hint=f"truncate them: tokenizer(rows, truncation=True, max_length={places})",
            )
        if self.labels != ("labels",) or "labels" not in columns:
            return
        labels = columns["labels"]
        if labels.dtype.kind not in "iub":
            if self._is_classifier and not self._is_per_token(labels):
                classes = f"num_labels={self.model.config.num_labels} classes"
                raise DataError(
                    f"'labels' are {labels.dtype}, but {self.name} has {classes}",
                    hint="use integer class numbers, or create the model for one number: num_labels=1",
                )
            return
        if self._is_per_token(labels) and ids is not None and not self._is_encoder_decoder:
            _check_alignment(ids, labels)
        is_class = self._is_named((*CLASSIFIERS, "TokenClassification"))
        number = self.model.config.num_labels
        if is_class and number > 1 and self.model.config.problem_type in (None, "single_label_classification"):
            self._check_range("labels", labels, number, f"{self.name} has num_labels={number}")
        elif vocabulary is not None and self._is_per_token(labels) and not is_class:
            self._check_range("labels", labels, vocabulary, f"the vocabulary of {self.name} has {vocabulary} tokens")

    def _check_range(self, name: str, column: Any, end: int, limit: str) -> None:
        values = _flat(column)
        wrong = (values >= end) | ((values < 0) & ((values != IGNORED) | (name != "labels")))
        if not wrong.any():
            return
        hint = (
            "use the tokenizer of this model, or resize the vocabulary: model.resize_token_embeddings(len(tokenizer))"
            if "vocabulary" in limit
            else f"create the model with one per class: num_labels={int(values.max()) + 1}"
        )
        raise DataError(f"{name!r} has the value {int(values[wrong][0])}, and {limit}", hint=hint)

    @property
    def _places(self) -> int | None:
        """Number of positions that the model has an embedding for; None if it computes them."""
        import torch

        tables = [
            module.num_embeddings - int(getattr(module, "offset", 0)) - (0 if pad is None else pad + 1)
            for name, module in self.model.named_modules()
            if isinstance(module, torch.nn.Embedding) and name.rpartition(".")[2] in POSITIONS
            for pad in [module.padding_idx]
        ]
        return min(tables, default=None)

    @staticmethod
    def _is_per_token(labels: Any) -> bool:
        return hasattr(labels, "lengths") or labels.ndim > 1

    def check_metrics(self, metrics: Any) -> None:
        """Refuse named metrics if the loss compares outputs with the next label."""
        several = metrics if isinstance(metrics, (list, tuple)) else [metrics]
        named = [metric for metric in several if isinstance(metric, (str, Metric))]
        if named and self._shifts:
            raise PhaseError(
                f"metrics={metrics!r} compare the output at a token with its label, but {self.name} "
                "predicts the next token",
                hint="leave metrics out and use the loss; its exponential is the perplexity",
            )

    def check_prediction(self) -> None:
        """Refuse encoder-decoders, which need their own earlier tokens as inputs."""
        if self._is_encoder_decoder and self.name.endswith("ForConditionalGeneration"):
            raise PhaseError(
                f"{self.name} generates its output token by token, not in one call",
                hint="generate with it: fitted.model.eval().generate(input_ids)",
            )

    # -- predictions -----------------------------------------------------------------------------------------------

    def outputs(self, results: EvalResults, names: Sequence[str]) -> Any:
        """Return the logits if there are any, without hidden states."""
        logits = [name for name in names if name.endswith(".logits")]
        return super().outputs(results, logits or names)

    @property
    def _is_classifier(self) -> bool:
        problem = self.model.config.problem_type
        return (
            self._is_named(CLASSIFIERS)
            and self.model.config.num_labels > 1
            and problem in (None, "single_label_classification")
        )

    def _is_named(self, kinds: Sequence[str]) -> bool:
        """Return whether the class of the model, or one that it is derived from, has one of these words in its name."""
        names = [base.__name__ for base in type(self.model).__mro__]
        return any(kind in name for kind in kinds for name in names)

    def classes(self) -> np.ndarray:
        """Return the names of `id2label`, or numbers if the model has default names.

        Raises:
            PhaseError: The model is not a classifier with one class per row.
        """
        if not self._is_classifier:
            return super().classes()
        count = self.model.config.num_labels
        names = [self.model.config.id2label.get(number) for number in range(count)]
        is_named = any(name != f"LABEL_{number}" for number, name in enumerate(names))
        return np.array(names if is_named else range(count))

    def decoded(self, outputs: Any) -> Any:
        """Return the classes of a classifier; numbers of other models unchanged."""
        if not self._is_classifier or not isinstance(outputs, np.ndarray):
            return outputs
        broken = np.isnan(outputs).any(axis=-1)
        if broken.any():  # a class would hide that its scores are NaN
            problem = f"predict: the logits are NaN in {int(broken.sum())} of {len(outputs)} rows, the first in row "
            problem += f"{int(broken.argmax())}; their classes are meaningless. Hint: see predict(data, outputs=True)"
            warnings.warn(problem, NaNWarning, stacklevel=user_level())
        return self.classes()[outputs.argmax(axis=-1)]

    # -- folders ---------------------------------------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        """Return the class and its configuration, for a class of transformers; {} for a custom class."""
        import transformers

        if getattr(transformers, self.name, None) is not type(self.model):
            return {}
        config = self.model.config
        return {
            "class": self.name,
            "config": json.loads(config.to_json_string(use_diff=False)),
            "attention": config._attn_implementation,  # noqa: SLF001 - which has no public name
            "dtype": str(self.model.dtype).removeprefix("torch."),
        }

    @classmethod
    def built(cls, config: Mapping[str, Any]) -> Any:
        """Build a transformers model with random values; the class is in the library, so no code of a folder runs.

        Raises:
            ConfigError: transformers has no such model.
        """
        import torch
        import transformers

        name = str(config.get("class"))
        model_class: Any = getattr(transformers, name, None)
        is_class = isinstance(model_class, type)
        if not (is_class and issubclass(model_class, transformers.PreTrainedModel)):
            raise ConfigError(
                f"transformers {transformers.__version__} has no model {name!r}",
                hint="update transformers, or pass the model: load(folder, models={'model': model})",
            )
        settings = model_class.config_class.from_dict(dict(config["config"]))
        with torch.random.fork_rng(devices=[]):
            return model_class._from_config(  # noqa: SLF001 - that of AutoModel chooses the class itself
                settings, attn_implementation=config["attention"], dtype=getattr(torch, config["dtype"])
            )


POSITIONS = ("wpe", "position_embeddings", "embed_positions", "position_embedding")
"""Names of position embeddings in transformers models."""


def _flat(column: Any) -> np.ndarray:
    """Return all values of a column, even if rows differ in length."""
    return np.asarray(column.values if hasattr(column, "lengths") else column).reshape(-1)


def _longest(column: Any) -> int:
    return int(column.lengths.max()) if hasattr(column, "lengths") else int(column.shape[-1])


def _check_alignment(ids: Any, labels: Any) -> None:
    """Refuse rows that do not have one label for each token."""
    lengths = [
        column.lengths if hasattr(column, "lengths") else np.full(len(column), column.shape[1])
        for column in (ids, labels)
    ]
    wrong = np.flatnonzero(lengths[0] != lengths[1])
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"row {row} has {lengths[0][row]} tokens and {lengths[1][row]} labels, one of {len(wrong)} such rows",
            hint="pass a label for each token, with -100 for tokens to ignore",
        )
