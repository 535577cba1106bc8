"""Wrong backends that call models by keyword: names, orders, paths and cotangents that go astray."""

from __future__ import annotations

import inspect
from dataclasses import replace

from anyaccel.adapter import ArrayProgram, VjpResult
from anyaccel.numpy_backend import Module, NumpyBackend
from anyaccel.numpy_backend.ops import NumpyOps

from .faults import fault

NAMES = ("minuend", "subtrahend")


class Difference(Module):
    """The kit's keyword_model, as a module that takes its inputs in the order of NAMES."""

    def apply(self, values, inputs, *, train, key):
        minuend, subtrahend = inputs
        return VjpResult(
            (minuend - subtrahend, minuend + 0),
            lambda cotangents: ({}, (cotangents[0] + cotangents[1], -cotangents[0])),
        )


class KeywordOps(NumpyOps):
    """Calls Difference by keyword, other modules as they are."""

    def vjp(self, model, parameters, buffers, inputs, train, key, layout=None):
        if layout is None:
            return super().vjp(model, parameters, buffers, inputs, train, key)
        places = self.places(layout.bind(range(len(inputs)))[1])
        applied = super().vjp(model, parameters, buffers, tuple(inputs[i] for i in places), train, key)
        return VjpResult(applied.outputs, lambda cotangents: self.pulled(places, applied.pullback(cotangents)))

    def places(self, where):
        """The number of the input for each of NAMES."""
        return [where[name] for name in NAMES]

    def pulled(self, places, pulled):
        parameters, cotangents = pulled
        return parameters, tuple(cotangents[places.index(i)] for i in range(len(cotangents)))


class KeywordBackend(NumpyBackend):
    """A right backend that calls by keyword."""

    calls_by_keyword = True
    ops = KeywordOps

    def build(self, segment):
        return ArrayProgram(segment, self.ops())

    def infer_outputs(self, model, inputs, arguments, seed):
        outputs = super().infer_outputs(model, inputs, arguments, seed)
        return named(outputs) if isinstance(model, Difference) else outputs

    def infer_training(self, model, inputs, arguments=()):
        outputs = super().infer_training(model, inputs)
        return named(outputs) if isinstance(model, Difference) else outputs


def named(outputs):
    paths = (("difference",), ("parts", "first"))
    return tuple(replace(output, path=path) for output, path in zip(outputs, paths, strict=True))


@fault("compute", "test_inputs_reach_the_arguments_of_their_names[subtrahend,minuend]")
class InputsInTheOrderOfTheNode(KeywordBackend):
    class ops(KeywordOps):
        def places(self, where):
            return [0, 1]

        def pulled(self, places, pulled):
            return pulled


@fault("compute", "test_inputs_reach_the_arguments_of_their_names[minuend,subtrahend]")
class InputsInTheOrderOfTheAlphabetReversed(KeywordBackend):
    class ops(KeywordOps):
        def places(self, where):
            return [where[name] for name in reversed(NAMES)]


@fault("compute", "test_cotangents_return_to_the_inputs_of_their_names[subtrahend,minuend]")
class CotangentsInTheOrderOfTheModel(KeywordBackend):
    class ops(KeywordOps):
        def pulled(self, places, pulled):
            return pulled


@fault("compute", "test_outputs_are_found_by_their_paths")
class OutputsWithoutPaths(KeywordBackend):
    def infer_outputs(self, model, inputs, arguments, seed):
        return NumpyBackend.infer_outputs(self, model, inputs, arguments, seed)


@fault("compute", "test_outputs_are_found_by_their_paths")
class OtherPathsInTraining(KeywordBackend):
    def infer_training(self, model, inputs, arguments=()):
        return NumpyBackend.infer_training(self, model, inputs)


@fault("compute", "test_a_signature_names_the_inputs")
class ASignatureOfTheClass(KeywordBackend):
    def signature(self, model):
        return inspect.signature(type(model).apply)
