"""Hints for calls that Python refuses: an argument that there is not, one that is missing, or too many by position."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, ParamSpec, TypeVar, overload

from anyaccel.errors import AnyaccelError, ArgumentError
from anyaccel.install_hints import FREEZING_HINT
from anyaccel.suggestions import did_you_mean

_Arguments = ParamSpec("_Arguments")
_Value = TypeVar("_Value")
_Class = TypeVar("_Class", bound=type)
UnknownArgument = Callable[[Any, str], AnyaccelError]
"""Gives the error for an argument that there is not: called with the object or class of a method, and the name."""

_OTHER_WORDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("n_epochs", "num_epochs", "max_epochs", "nb_epoch", "n_epoch", "num_train_epochs"), ("epochs",)),
    **dict.fromkeys(("device", "devices", "device_map", "gpus", "where"), ("accelerator", "where", "devices")),
    **dict.fromkeys(("learning_rate", "learningrate", "eta"), ("lr",)),
    "step_size": ("lr", "every"),
    **dict.fromkeys(("gamma", "decay_rate"), ("rate",)),
    **dict.fromkeys(("warmup_steps", "num_warmup_steps", "n_warmup_steps", "warm_up"), ("warmup",)),
    **dict.fromkeys(("decay_steps", "transition_steps", "T_max"), ("steps", "every")),
    **dict.fromkeys(
        ("max_grad_norm", "grad_clip", "gradient_clip_val", "max_norm", "global_clipnorm", "grad_norm"), ("clip_norm",)
    ),
    **dict.fromkeys(("clipvalue", "grad_clip_value"), ("clip_value",)),
    **dict.fromkeys(("optim", "opt", "solver"), ("optimizer",)),
    **dict.fromkeys(("loss_fn", "criterion", "objective", "loss_function"), ("loss", "losses")),
    **dict.fromkeys(("loss", "losses", "loss_weights"), ("losses", "loss")),
    **dict.fromkeys(("metric", "eval_metric", "scoring"), ("metrics", "measure", "figures")),
    **dict.fromkeys(
        ("batch", "bs", "batch_size", "sampler", "per_device_train_batch_size", "train_batch_size"),
        ("batch_size", "sampler"),
    ),
    **dict.fromkeys(("patience", "early_stop"), ("early_stopping",)),
    **dict.fromkeys(
        (
            *("validation_data", "val", "val_data", "eval_set", "validation_split", "eval_data", "test_size"),
            *("eval_dataset", "valid_pct", "validation_fraction", "tuning_data"),
        ),
        ("validation",),
    ),
    **dict.fromkeys(("random_state", "random_seed", "rng", "manual_seed"), ("seed",)),
    **dict.fromkeys(
        ("path", "filename", "file", "dir", "directory", "filepath", "dirpath", "log_dir", "logdir"), ("folder", "path")
    ),
    **dict.fromkeys(("verbose", "progress_bar", "verbosity", "disable_tqdm"), ("progress",)),
    **dict.fromkeys(("cat_names", "cat_cols", "categorical_features", "categorical_columns"), ("categories",)),
    **dict.fromkeys(("gradient_accumulation_steps", "accumulate_grad_batches", "grad_accum"), ("accumulate",)),
    **dict.fromkeys(
        ("output_dir", "default_root_dir", "ckpt_path", "project_dir", "checkpoints"), ("checkpoint", "folder", "save")
    ),
    **dict.fromkeys(("checkpoint", "folder"), ("save",)),
    **dict.fromkeys(("resume_from_checkpoint",), ("resume",)),
    **dict.fromkeys(("num_workers", "n_jobs", "n_workers"), ("workers", "count")),
    **dict.fromkeys(
        ("y", "targets", "target", "target_keys", "target_cols", "labels", "label_column", "label", "y_names"),
        ("target", "targets"),
    ),
    **dict.fromkeys(("tag_keys", "tag_cols"), ("tags",)),
    **dict.fromkeys(
        ("X", "x", "input_columns", "feature_keys", "feature_cols", "cont_names"), ("features", "data", "inputs")
    ),
    **dict.fromkeys(("dataset", "train_data", "split", "train_dataset", "train_dataloader"), ("data", "dataset")),
    **dict.fromkeys(("name", "title", "id"), ("label", "name")),
    **dict.fromkeys(("params", "variables"), ("parameters", "variables")),
    "weights": ("parameters", "variables", "sample_weight"),
    **dict.fromkeys(("module", "net", "network", "estimator"), ("model", "estimator")),
    **dict.fromkeys(("inputs", "input", "upstream", "source"), ("upstream_ref", "upstream_refs", "features", "source")),
    **dict.fromkeys(("save_best_only", "save_best", "save_top_k", "monitor"), ("keep_best", "monitor")),
    **dict.fromkeys(("max_to_keep", "save_total_limit"), ("keep",)),
    **dict.fromkeys(("save_freq", "save_steps", "every_n_epochs", "period"), ("every",)),
    **dict.fromkeys(("restore_best_weights",), ("restore_best",)),
    **dict.fromkeys(("dtype", "mixed_precision"), ("precision", "dtype")),
    **dict.fromkeys(("scheduler", "lr_scheduler", "lr_schedule"), ("schedule",)),
    **dict.fromkeys(("hidden", "hidden_size", "hidden_layer_sizes", "units"), ("hidden_dim",)),
    **dict.fromkeys(("num_layers", "depth", "layers"), ("n_layers", "nodes")),
    **dict.fromkeys(("standardize", "normalize", "preprocessing"), ("scaler",)),
    **dict.fromkeys(("stratify", "stratify_on"), ("stratify_by",)),
    **dict.fromkeys(("groups", "group_on"), ("group_by",)),
}
"""Words of other libraries, and the arguments that they may mean here; the first that a call has is the one."""
_OF_OPTIMIZERS: Mapping[str, str] = {
    **dict.fromkeys(("lr", "learning_rate", "eta", "step_size"), "'adam', lr=1e-3"),
    **dict.fromkeys(
        ("schedule", "scheduler", "lr_scheduler", "lr_schedule"), "'adam', schedule=Schedule('cosine', steps=1000)"
    ),
    **dict.fromkeys(
        ("clip", "clip_norm", "clipnorm", "grad_clip", "gradient_clip_val", "max_grad_norm", "max_norm"),
        "'adam', clip_norm=1.0",
    ),
    "weight_decay": "'adamw', weight_decay=0.01",
    "momentum": "'momentum', momentum=0.9",
    **dict.fromkeys(
        ("warmup_steps", "warmup", "num_warmup_steps", "warmup_epochs", "warmup_ratio"),
        "'adamw', schedule=Schedule('cosine', steps=1000, warmup=100)",
    ),
}
"""What an optimizer has, where a call takes one, by names that it has here and elsewhere."""
_VALUES: Mapping[tuple[str, str], str] = {
    ("verbose", "progress"): "write progress='none', or 'auto'",
    ("shuffle", "sampler"): "rows are shuffled; sampler=SimpleSampler(32) keeps their order",
    ("fp16", "precision"): "write precision='fp16-mixed'",
    ("bf16", "precision"): "write precision='bf16-mixed'",
    ("pad", "data"): "pass data that are padded: IterableSource('data', source, features='x', target='y', "
    "pad={'x': 0})",
    ("min_lr", "min_factor"): "it is called 'min_factor', and is a share of the rate",
    ("min_delta", "threshold"): "it is called 'threshold', with threshold_mode='abs' for a difference",
    ("run_eagerly", "compile"): "write compile='off'",
    ("initial_epoch", "resume"): "a checkpoint knows the epoch: write checkpoint='runs/a', resume='auto'",
    **{
        (word, "epochs"): "an epoch takes all batches; to limit them, pass "
        "IterableSource('data', source, features='x', target='y', steps=1000)"
        for word in ("steps_per_epoch", "limit_train_batches")
    },
    ("x", "target"): "pass x and y as a pair: (x, y)",
    ("X", "target"): "pass x and y as a pair: (x, y)",
    **{
        (word, "callbacks"): "pass the callback of the tracker: callbacks=[...]"
        for word in ("report_to", "logger", "loggers", "tracker")
    },
    **{
        (word, "replicas"): "write replicas=2, or accelerator='gpu:*'"
        for word in ("devices", "gpus", "n_devices", "num_devices", "n_gpus", "num_processes", "world_size")
    },
    **{(word, "precision"): "write precision='bf16-mixed'" for word in ("amp", "use_amp", "autocast")},
    **{
        ("loss_weights", argument): "each loss has its weight: AppliedLoss('mse', weight=0.5)"
        for argument in ("loss", "losses")
    },
    ("mixed_precision", "pin_memory"): "a phase or loop has it: fit(..., precision='bf16-mixed')",
    **{(word, "models"): "write models={'model': model}" for word in ("model", "module", "net")},
    ("clipnorm", "clip_norm"): "it is called 'clip_norm', and limits the norm of all gradients together",
    **{
        (word, "steps"): "it is called 'steps', and counts from the end of the warm-up"
        for word in ("num_training_steps", "total_steps")
    },
    ("warmup_epochs", "warmup"): "it is called 'warmup', and counts steps, not epochs",
    **{
        (word, "warmup"): "it is called 'warmup', and is a number of steps, not a fraction"
        for word in ("warmup_ratio", "warmup_proportion")
    },
    **{
        (word, "schedule"): "it belongs to the schedule: schedule=Schedule('cosine', steps=1000, warmup=100)"
        for word in ("warmup", "warmup_steps", "num_warmup_steps", "warmup_epochs", "warmup_ratio")
    },
    **{
        (word, "save"): "it is called 'save': the loop resumes from the newest checkpoint in this folder"
        for word in ("resume_from", "resume_from_checkpoint")
    },
    **{(word, "model"): FREEZING_HINT for word in ("freeze", "frozen", "trainable", "freeze_layers", "requires_grad")},
}
"""Hints for a word of other libraries and the argument that has its place, where the value is another, too."""
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_MANY = 20  # arguments, from which a list of them all is no help
_STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@overload
def call_hints(
    function: Callable[_Arguments, _Value], *, unknown: UnknownArgument | None = None
) -> Callable[_Arguments, _Value]: ...


@overload
def call_hints(
    function: None = None, *, unknown: UnknownArgument | None = None
) -> Callable[[Callable[_Arguments, _Value]], Callable[_Arguments, _Value]]: ...


def call_hints(function: Any = None, *, unknown: UnknownArgument | None = None) -> Any:
    """Let a call with wrong arguments raise an ArgumentError that lists the arguments and suggests one.

    The signature stays unchanged for editors and type checkers, and a call that Python accepts is not examined.

    Args:
        function: A function, a method, or `__init__`.
        unknown: Function that returns another error for an unknown argument.
    """
    if function is None:
        return functools.partial(call_hints, unknown=unknown)

    @functools.wraps(function)
    def hinted(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except TypeError:
            error = _wrong_call(function, args, keywords, unknown)
            if error is None:
                raise
        raise error

    hinted.has_call_hints = True  # type: ignore[attr-defined]
    return hinted


def constructor_hints(cls: _Class) -> _Class:
    """Give a class `call_hints` for its constructor, and for its class methods and static methods that are public."""
    return _with_hints(cls, lambda name, value: isinstance(value, (classmethod, staticmethod)) and name[0] != "_")


def class_hints(cls: _Class) -> _Class:
    """Give a class `call_hints` for its constructor, and for all its public methods."""

    def is_method(name: str, value: Any) -> bool:
        return name[0] != "_" and (isinstance(value, (classmethod, staticmethod)) or inspect.isfunction(value))

    return _with_hints(cls, is_method)


def _with_hints(cls: _Class, wanted: Callable[[str, Any], bool]) -> _Class:
    for name, value in list(vars(cls).items()):
        if name not in ("__init__", "__new__") and not wanted(name, value):
            continue
        function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if getattr(function, "__isabstractmethod__", False) or hasattr(function, "has_call_hints"):
            continue
        hinted = call_hints(function)
        setattr(cls, name, type(value)(hinted) if isinstance(value, (classmethod, staticmethod)) else hinted)
    return cls


def _wrong_call(
    function: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any], unknown: UnknownArgument | None
) -> AnyaccelError | None:
    """The error for a call that does not fit the signature; None if it does, and something else was wrong."""
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **keywords)
    except TypeError as error:
        reason = str(error)
    else:
        return None
    parameters = dict(signature.parameters)
    name, first = function.__qualname__.rpartition("<locals>.")[2], next(iter(parameters), "")
    if "." in name and first in ("self", "cls"):
        del parameters[first]
        if args:  # of a subclass, the name of the one that was called
            owner = args[0] if isinstance(args[0], type) else type(args[0])
            name = f"{owner.__name__}.{function.__name__}"
    name = name.removesuffix(".__init__").removesuffix(".__new__")
    available = ", ".join(parameters)
    wrong = next((keyword for keyword in keywords if keyword not in parameters), None)
    if wrong is not None and unknown is not None:
        return unknown(args[0] if args else None, wrong)
    if wrong is not None:
        return unknown_argument(name, wrong, parameters)
    needed = [
        f"{parameter.name}=..." if parameter.kind is inspect.Parameter.KEYWORD_ONLY else parameter.name
        for parameter in parameters.values()
        if parameter.default is inspect.Parameter.empty and parameter.kind not in _STARRED
    ]
    if reason == "too many positional arguments":
        positional = [key for key, parameter in parameters.items() if parameter.kind in _POSITIONAL]
        others = [f"{key}=..." for key in parameters if key not in positional]
        hint = f"write {name}({', '.join(positional + others[:1])}{', ...' if others[1:] else ''})"
        is_method = len(parameters) < len(signature.parameters)
        extra = args[len(positional) + is_method :]
        is_array = len(extra) == 1 and (hasattr(extra[0], "shape") or isinstance(extra[0], list))
        if positional[-1:] == ["data"] and is_array:
            hint = "pass x and y as a pair: (x, y)"
        return ArgumentError(f"{name}: {reason}", available="" if len(parameters) > _MANY else available, hint=hint)
    more = ["..."] if len(needed) < len(parameters) else []
    return ArgumentError(f"{name}: {reason}", hint=f"write {name}({', '.join([*needed, *more])})")


def unknown_argument(name: str, wrong: str, parameters: Mapping[str, inspect.Parameter]) -> ArgumentError:
    """Create the error for an argument that a function does not have, which suggests the closest one."""
    hint = meant_argument(wrong, parameters)
    # a hint that names the argument says it; nobody reads a list of 40 beside it
    available = "" if hint and len(parameters) > _MANY else ", ".join(parameters)
    problem = f"{name} has no argument {wrong!r}"
    return ArgumentError(problem, available=available, hint=hint or "use one of these names")


def meant_argument(wrong: str, parameters: Collection[str], otherwise: str = "") -> str:
    """Return a hint for an argument that there is not; `otherwise` if no argument is like it."""
    if not parameters:
        return otherwise or "it takes no arguments"
    if "optimizer" in parameters and wrong in _OF_OPTIMIZERS:
        return f"pass it to the optimizer: optimizer=Optimizer({_OF_OPTIMIZERS[wrong]})"
    value = next((hint for (word, argument), hint in _VALUES.items() if word == wrong and argument in parameters), None)
    other = next((word for word in _OTHER_WORDS.get(wrong, ()) if word in parameters and word != wrong), None)
    return value or (f"it is called {other!r}" if other else did_you_mean(wrong, parameters, otherwise))
