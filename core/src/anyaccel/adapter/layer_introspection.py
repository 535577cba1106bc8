"""Layers of a library that runs on several frameworks: their parts, variable names, initializers, inputs and losses.

The adapter imports no such library: each function works with the module that a plugin passes, and a plugin passes None
until the library is imported. A subclass adds the parts of a framework (its modules, its generators).
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from anyaccel import rng
from anyaccel.adapter.attribute_snapshot import AttributeSnapshot
from anyaccel.adapter.call_layout import POSITIONAL, Arguments, CallLayout
from anyaccel.adapter.losses import make_loss
from anyaccel.errors import ShapeError
from anyaccel.specs import Loss, LossTargets

_IMAGE_LAYERS = ("Conv", "Pooling", "UpSampling", "ZeroPadding", "Cropping")
_ELEMENTWISE_LAYERS = (".layers.activations", ".layers.regularization")
# Losses that compare outputs and targets element by element, by their classes' names in lower case.
_ELEMENTWISE_LOSSES = frozenset(
    {
        *("meansquarederror", "meanabsoluteerror", "meanabsolutepercentageerror", "meansquaredlogarithmicerror"),
        *("huber", "logcosh", "poisson", "binarycrossentropy", "binaryfocalcrossentropy", "hinge", "squaredhinge"),
        *("categoricalhinge", "kldivergence", "cosinesimilarity"),
    }
)

# What losses take as targets, by the names of their classes and functions in lower case.
_LOSS_TARGETS = {
    **dict.fromkeys(("binarycrossentropy", "binaryfocalcrossentropy"), "probabilities"),
    **dict.fromkeys(
        ("categoricalcrossentropy", "categoricalfocalcrossentropy", "sparsecategoricalcrossentropy"), "classes"
    ),
    "poisson": "non_negative",
}
_PLAIN = frozenset((str, bytes, bool, int, float, type, type(None)))
_TRAINING_METHODS = ("train_step", "compute_loss", "make_train_function", "compute_loss_and_updates")


class LayerLibrary:
    """Inspect layers of a library.

    Args:
        module: The library, or None if nothing can belong to it.

    Attributes:
        hidden_prefixes: Prefixes of attribute names that a framework uses internally.
    """

    hidden_prefixes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, module: Any) -> None:
        self.module = module

    # -- kinds of objects ------------------------------------------------------------------------------------------

    def is_layer(self, obj: Any) -> bool:
        """Return whether an object is a layer or model of the library."""
        return self.module is not None and isinstance(obj, self.module.Layer)

    def is_variable(self, obj: Any) -> bool:
        """Return whether an object is a variable."""
        return self.module is not None and isinstance(obj, self.module.Variable)

    def is_random(self, obj: Any) -> bool:
        """Return whether an object has the state of random numbers in its attribute `state`."""
        return self.module is not None and isinstance(obj, self.module.random.SeedGenerator)

    def is_part(self, obj: Any) -> bool:
        """Return whether an object may hold variables or other parts in its attributes."""
        return self.is_layer(obj)

    def is_functional(self, obj: Any) -> bool:
        """Return whether an object is a functional model; the library has no public name for that class."""
        return self.is_layer(obj) and any(base.__name__ == "Functional" for base in type(obj).__mro__)

    def is_sequential(self, obj: Any) -> bool:
        """Return whether an object is a sequence of layers."""
        return self.module is not None and isinstance(obj, self.module.Sequential)

    @cached_property
    def layer_attributes(self) -> frozenset[str]:
        """Names of the attributes that every layer has for its own bookkeeping."""
        return frozenset(vars(self.module.Layer()))

    # -- walking ---------------------------------------------------------------------------------------------------

    def walk(self, obj: Any) -> Iterator[tuple[str, Any]]:
        """Yield everything that an object holds, itself first, each object once, with the attributes that lead to it.

        Numbers and text in it are left out: most attributes of a layer are such.

        Paths are joined by dots, without leading underscores: `layers.0.kernel`.
        """
        seen: dict[int, Any] = {}
        holders: dict[type, bool] = {}  # most objects of a layer hold nothing, and are of few classes
        waiting = [("", obj)]
        while waiting:
            path, obj = waiting.pop()
            if id(obj) in seen:
                continue
            seen[id(obj)] = obj  # kept alive, so that no other object gets the same id
            yield path, obj
            kind = obj.__class__
            if kind not in holders:
                holders[kind] = not self.is_variable(obj) and self.has_children(obj)
            if holders[kind]:
                prefix = f"{path}." if path else ""
                held = [(name, child) for name, child in self.children(obj) if type(child) not in _PLAIN]
                waiting += [(f"{prefix}{name.lstrip('_')}", child) for name, child in reversed(held)]

    def has_children(self, obj: Any) -> bool:
        """Return whether an object is of a class with `children`."""
        return isinstance(obj, (list, tuple, Mapping)) or self.is_random(obj) or self.is_part(obj)

    def children(self, obj: Any) -> Iterator[tuple[str, Any]]:
        """Yield the contents of a container, a random generator or a part, by name; a part's numbers are left out."""
        if isinstance(obj, (list, tuple)):
            yield from ((str(i), child) for i, child in enumerate(obj))
        elif isinstance(obj, (dict, Mapping)):  # the second takes long to ask for
            yield from ((str(key), child) for key, child in obj.items())
        elif self.is_random(obj):
            yield "state", obj.state
        elif self.is_part(obj):
            if self.is_functional(obj) or self.is_sequential(obj):  # their layers have no attributes of their own
                yield "layers", list(obj.layers)
            held = [item for item in self.attributes(obj).items() if type(item[1]) not in _PLAIN]
            bookkeeping = self._bookkeeping(obj)
            yield from sorted(held, key=lambda item: self._rank(item[0], bookkeeping))

    def attributes(self, part: Any) -> Mapping[str, Any]:
        """Return the attributes of a part that are searched."""
        held: Mapping[str, Any] = vars(part)
        return held

    def _bookkeeping(self, part: Any) -> frozenset[str]:
        return self.layer_attributes if self.is_layer(part) else frozenset()

    def _rank(self, name: str, bookkeeping: frozenset[str]) -> int:
        """Return the user's attributes first, then private ones, then bookkeeping."""
        return 2 if name.startswith(self.hidden_prefixes) or name in bookkeeping else int(name.startswith("_"))

    def attribute_snapshot(self, model: Any) -> AttributeSnapshot:
        """Return the user's attributes of all parts of a model that has its variables, which a trial call may
        change.
        """
        return AttributeSnapshot((part for _, part in self.walk(model) if self.is_part(part)), self._public_attributes)

    def _public_attributes(self, part: Any) -> list[str]:
        bookkeeping = self._bookkeeping(part)
        return [name for name in vars(part) if self._rank(name, bookkeeping) == 0]

    def named(
        self, model: Any, variables: Iterable[Any], held: Iterable[tuple[str, Any]] | None = None
    ) -> dict[str, Any]:
        """Return variables of a model by the path that leads to each, in the order given.

        `held` is the result of `walk(model)`, if the caller has it.
        """
        variables = list(variables)
        searched = set(map(id, variables))
        walked = self.walk(model) if held is None else held
        paths = {id(obj): path for path, obj in walked if id(obj) in searched}
        return unique_names((paths.get(id(v), f"variables.{i}"), v) for i, v in enumerate(variables))

    # -- building --------------------------------------------------------------------------------------------------

    def seed_initializers(self, model: Any, seed: int) -> None:
        """Give the initializers of unbuilt layers seeds derived from `seed`; seeds that the user set are kept."""
        for path, layer in list(self.walk(model)):
            if self.is_layer(layer) and not layer.built:
                key = rng.key(seed, path)
                for name, value in vars(layer).items():
                    if isinstance(value, self.module.Initializer) and _is_unseeded(value):
                        value.seed = rng.key(key, name) % 2**31

    def unbuilt_dtype(self, model: Any) -> str | None:
        """Return the dtype of the weights that the first layer will create; None if not floating, or without layers."""
        for _, layer in self.walk(model):
            if self.is_layer(layer) and not hasattr(layer, "layers"):  # a model's dtype may differ from its layers'
                return str(layer.variable_dtype) if "float" in str(layer.variable_dtype) else None
        return None

    # -- calling ---------------------------------------------------------------------------------------------------

    def packing(
        self, layer: Any, n_inputs: int, layout: CallLayout = POSITIONAL
    ) -> Callable[[Sequence[Any]], Arguments]:
        """Return how `n_inputs` inputs become the arguments of a layer.

        A functional model takes the structure of its `input`, which is filled by the names of its inputs, or in their
        order. A layer whose `call` has fewer positional parameters than there are inputs takes them as one list.
        """
        if self.is_functional(layer):
            tree, structure = self.module.tree, layer.input
            names = self._input_names(layer) if layout.is_named else []

            def pack(inputs: Sequence[Any]) -> Arguments:
                positional, named = layout.bind(inputs)
                flat = [named[name] for name in names] if named else list(positional)
                return [tree.pack_sequence_as(structure, flat)], {}

            return pack
        parameters = self._call_parameters(layer)
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        takes_all = len(positional) >= n_inputs or any(p.kind is p.VAR_POSITIONAL for p in parameters)
        if layout.is_named or n_inputs == 1 or takes_all:
            return layout.bind
        return lambda inputs: ([list(inputs)], {})

    def _input_names(self, layer: Any) -> list[str]:
        """Return names of a functional model's inputs, in the order of its flat structure: keys of a dict, otherwise
        their own.
        """
        structure = layer.input
        is_flat = isinstance(structure, Mapping) and len(structure) == len(layer.inputs)
        return sorted(structure) if is_flat else [str(tensor.name) for tensor in layer.inputs]

    def _call_parameters(self, layer: Any) -> list[inspect.Parameter]:
        parameters = inspect.signature(layer.call).parameters.values()
        return [parameter for parameter in parameters if parameter.name not in ("training", "mask")]

    def signature(self, layer: Any) -> inspect.Signature:
        """Return the signature of a call; inputs of a functional model that takes a dict are keyword-only."""
        if not self.is_functional(layer):
            return inspect.Signature(self._call_parameters(layer))
        kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        kind = kinds[isinstance(layer.input, Mapping)]
        names = [name for name in self._input_names(layer) if name.isidentifier()]
        return inspect.Signature([inspect.Parameter(name, kind) for name in names])

    def data_format(self, model: Any) -> tuple[str, str]:
        """Return the format of inputs and outputs of a layer for images, or of a sequence that begins or ends with
        one.
        """
        layers = [
            layer
            for layer in self._flat(model)
            if not any(package in type(layer).__module__ for package in _ELEMENTWISE_LAYERS)
        ]
        formats = [
            str(getattr(layer, "data_format", ""))
            if any(word in type(layer).__name__ for word in _IMAGE_LAYERS)
            else ""
            for layer in layers
        ] or [""]
        return formats[0], "" if layers and "Global" in type(layers[-1]).__name__ else formats[-1]

    def _flat(self, layer: Any) -> list[Any]:
        layers = layer.layers if self.is_sequential(layer) else []
        return [leaf for inner in layers for leaf in self._flat(inner)] or [layer]

    # -- training --------------------------------------------------------------------------------------------------

    def untrainable_reason(self, model: Any) -> str:
        """Return the reason why only the library's own loop can train a model; see `Compute.untrainable_reason`."""
        if not self.is_layer(model):
            return ""
        package = str(self.module.__name__).partition(".")[0]
        for method in _TRAINING_METHODS:
            owner = next((cls for cls in type(model).__mro__ if method in vars(cls)), None)
            is_theirs = owner is not None and owner.__module__.partition(".")[0] != package
            if is_theirs or method in vars(model):
                text = f"{type(model).__name__} overrides {method}, which would not be called"
                return f"{text}; a phase takes such code as a function, TrainPhase(step=step), or as a loss"
        return ""

    def refuse_stateful(self, model: Any) -> None:
        """Refuse a model that keeps its state from one batch to the next, because the rows of batches are independent
        here.

        Raises:
            ShapeError: it does.
        """
        parts = ((path, part) for path, part in self.walk(model) if self.is_layer(part))
        stateful = next(((path, part) for path, part in parts if getattr(part, "stateful", False)), None)
        if stateful is not None:
            path, part = stateful
            raise ShapeError(
                f"{path or 'the layer'} ({type(part).__name__}) is stateful: it continues from the "
                "state of the previous batch, but here batches are independent of each other",
                hint="create it with stateful=False, or train the model with its framework's own loop",
            )

    def refuse_masks(self, model: Any, outputs: Any) -> None:
        """Refuse outputs of training that carry a mask, because the library leaves masked positions out of its losses.

        Raises:
            ShapeError: one does.
        """
        # it has no public name, and an attribute would not do: not every array can have one
        mask_of = getattr(self.module.src.backend, f"get_{self.module.__name__}_mask")
        if any(mask_of(leaf) is not None for leaf in self.module.tree.flatten(outputs)):
            raise ShapeError(
                f"an output of {type(model).__name__} carries a mask, which makes its framework's own "
                "loop ignore positions in losses and metrics; here they would count",
                hint="end the model with a layer that drops the mask, layers.Lambda(ops.copy), and "
                "ignore positions in a custom loss; or return one vector for each sample",
            )

    # -- optimizers ------------------------------------------------------------------------------------------------

    def is_optimizer(self, own: Any) -> bool:
        """Return whether an optimizer is a class of the library, or an object of one."""
        own_class = own if isinstance(own, type) else type(own)
        return self.module is not None and issubclass(own_class, self.module.optimizers.Optimizer)

    # -- losses ----------------------------------------------------------------------------------------------------

    def is_loss(self, own: Any) -> bool:
        """Return whether a loss is the library's: a class derived from its `Loss`, an instance of one, or a
        function.
        """
        if self.module is None:
            return False
        own_class = own if isinstance(own, type) else type(own)
        package = str(self.module.__name__).partition(".")[0]
        return issubclass(own_class, self.module.losses.Loss) or (
            inspect.isfunction(own) and own.__module__.startswith(f"{package}.")
        )

    def loss_targets(self, loss: Loss) -> LossTargets | None:
        """Return the targets that a loss of the library accepts; see `Compute.loss_targets`."""
        custom_loss = loss.own
        if not self.is_loss(custom_loss):
            return None
        named = custom_loss if isinstance(custom_loss, type) or inspect.isfunction(custom_loss) else type(custom_loss)
        if named.__module__.partition(".")[0] != str(self.module.__name__).partition(".")[0]:
            return None  # derived from one, and may take anything
        name = named.__name__.replace("_", "").lower()
        kind = _LOSS_TARGETS.get(name)
        ignored = loss.kwargs.get("ignore_class", getattr(custom_loss, "ignore_class", None))
        if kind is None:
            return None
        form = ("indices" if name.startswith("sparse") else "probabilities") if kind == "classes" else ""
        return LossTargets(kind, ignored=ignored if isinstance(ignored, int) else None, form=form)

    def loss_function(self, loss: Loss, mean: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
        """Return a loss of the library as a function of (outputs, targets) that returns a scalar and never broadcasts.

        Args:
            loss: The loss; its `own` is a loss of the library.
            mean: Function that computes the mean of a tensor; the library may return one number per sample.

        Raises:
            SpecError: the class does not take `loss_kwargs`.
        """
        function = make_loss(loss)
        names = (
            [function.__name__] if inspect.isfunction(function) else [base.__name__ for base in type(function).__mro__]
        )
        compares_elements = any(name.replace("_", "").lower() in _ELEMENTWISE_LOSSES for name in names)

        def compute(outputs: Any, targets: Any) -> Any:
            if compares_elements:
                shapes = tuple(outputs.shape), tuple(targets.shape)
                shorter, longer = sorted(shapes, key=len)
                if longer not in (shorter, (*shorter, 1)):  # the library itself drops a trailing axis of length 1
                    raise ShapeError(
                        f"the loss {loss.name!r} got outputs of shape {list(shapes[0])} and targets of shape "
                        f"{list(shapes[1])}",
                        cause="losses do not broadcast: both must have the same shape",
                        hint="change the output shape of the model, or store the targets in the shape of the outputs",
                    )
            return mean(function(targets, outputs))  # the library takes targets first

        compute.__name__ = loss.name
        return compute


def unique_names(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return values by name; a name that is taken already gets `_2`, `_3` and so on appended."""
    named: dict[str, Any] = {}
    for path, value in pairs:
        name, number = path, 2
        while name in named:
            name, number = f"{path}_{number}", number + 1
        named[name] = value
    return named


@contextmanager
def seeded_host_generators(seed: int) -> Iterator[None]:
    """Seed Python's and NumPy's global generators from 64 bits inside this context, and restore them afterwards."""
    states = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def _is_unseeded(initializer: Any) -> bool:
    try:
        return hasattr(initializer, "seed") and initializer.get_config().get("seed", 0) is None
    except NotImplementedError:  # the user's own class need not have a configuration
        return False
