"""Shapes, states and programs of TensorFlow modules and Keras models."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np

from anyaccel.adapter.keyword_compute import KeywordCompute
from anyaccel.adapter.memory_figures import MemoryFigures
from anyaccel.adapter.output_activations import warn_of_activations
from anyaccel.adapter.precision_casts import codes_reason, layers_reason
from anyaccel.adapter.state_check import check_state, not_built_error, state_names
from anyaccel.backend import Program
from anyaccel.device import Device
from anyaccel.formulas import OPTIMIZERS
from anyaccel.precision import PRECISIONS, ComputesPrecision
from anyaccel.segment import OutputSpec, Path, Segment, TensorSpec
from anyaccel.specs import Loss, LossTargets, Optimizer
from anyaccel_tensorflow.placement import TensorFlowPlacement


class TensorFlowCompute(TensorFlowPlacement, KeywordCompute):
    """Compute Keras models and layers, and callable tf.Modules, that return tensors: one, or a tuple, list or dict.

    Losses that a Keras model adds itself (regularizers, `add_loss`) enter its gradients with weight 1, as in Keras; the
    losses that a phase reports do not contain them.
    """

    parameter_groups = True
    custom_steps = True

    def batch_coupling(self, model: Any) -> str:
        """Return BatchNormalization that trains, and layers with such a name."""
        from anyaccel_tensorflow.shape_inference import batch_coupling

        return batch_coupling(model)

    def untrainable_reason(self, model: Any) -> str:
        """Return a reason for models of Keras, and for layers that assign to weights they train."""
        from anyaccel_tensorflow.shape_inference import untrainable_reason

        return untrainable_reason(model)

    def infer_outputs(
        self, model: Any, inputs: Sequence[TensorSpec], arguments: Sequence[Path], seed: int
    ) -> tuple[OutputSpec, ...]:
        """Run the model in evaluation mode to trace it."""
        from anyaccel_tensorflow.shape_inference import infer_outputs

        return infer_outputs(model, inputs, arguments, seed)

    def signature(self, model: Any) -> inspect.Signature | None:
        from anyaccel_tensorflow.functional_call import signature

        return signature(model)

    def infer_training(
        self, model: Any, inputs: Sequence[TensorSpec], arguments: Sequence[Path] = ()
    ) -> tuple[OutputSpec, ...]:
        """The model is traced on shapes alone, and not changed."""
        from anyaccel_tensorflow.shape_inference import infer_training

        return infer_training(model, inputs, arguments)

    def dtype_of(self, model: Any) -> str | None:
        """Return the dtype of the first floating parameter, or the one that an unbuilt model will have."""
        from anyaccel_tensorflow.shape_inference import parameter_dtype

        return parameter_dtype(model)

    def parameters(self, model: Any) -> Mapping[str, TensorSpec]:
        """Return the specs of the parameters by path of attributes; a variable that several parts share is listed once.

        Raises:
            StateError: the model is not built yet.
        """
        return {name: _spec_of(variable) for name, variable in _variables(model).parameters.items()}

    def mutates_inputs(self, model: Any, inputs: Sequence[TensorSpec], arguments: Sequence[Path] = ()) -> bool:
        """Never, tensors are immutable."""
        return False

    def data_format(self, model: Any) -> tuple[str, str]:
        """Return the format of Keras layers of images, and sequences that begin or end with one."""
        from anyaccel_tensorflow.shape_inference import data_format

        return data_format(model)

    def build(self, segment: Segment) -> Program:
        """Return a `TensorFlowProgram`."""
        from anyaccel_tensorflow.ops import TensorFlowOps
        from anyaccel_tensorflow.program import TensorFlowProgram
        from anyaccel_tensorflow.variables import keras

        warn_of_activations(keras(), segment)
        return TensorFlowProgram(segment, TensorFlowOps(segment, self.device_string))

    def state(self, model: Any) -> dict[str, np.ndarray]:
        """Return bfloat16 as the dtype of ml_dtypes.

        Raises:
            StateError: the model is not built yet.
        """
        return {name: np.array(array) for name, array in self.live_state(model).items()}

    def live_state(self, model: Any) -> dict[str, np.ndarray]:
        """Return arrays on the memory of tensors on the CPU, and copies of others."""
        from anyaccel_tensorflow.variables import read

        return {name: np.asarray(read(variable)) for name, variable in state_names(*_variables(model)).items()}

    def load_state(self, model: Any, state: Mapping[str, np.ndarray]) -> None:
        """Nothing is written if anything does not fit."""
        from anyaccel_tensorflow.host_transfer import copy_to_cpu
        from anyaccel_tensorflow.transfers import move_tensor
        from anyaccel_tensorflow.variables import tf_variable, write

        named = state_names(*_variables(model))
        check_state(state, {name: _spec_of(variable) for name, variable in named.items()})
        copies = {name: copy_to_cpu(np.asarray(state[name])) for name in named}
        values = {name: move_tensor(copy, tf_variable(named[name]).device) for name, copy in copies.items()}
        for name, variable in named.items():
            write(variable, values[name])

    def models(self) -> Mapping[str, type]:
        """Return SequentialMLP, SequentialCNN and TabularMLP."""
        from anyaccel_tensorflow.builtin_models import SequentialCNN, SequentialMLP, TabularMLP

        return {"SequentialMLP": SequentialMLP, "SequentialCNN": SequentialCNN, "TabularMLP": TabularMLP}

    def loss_targets(self, loss: Loss) -> LossTargets | None:
        """Return the targets of losses of Keras."""
        from anyaccel_tensorflow.variables import keras

        return keras().loss_targets(loss)

    def unsupported_reason(self, spec: Optimizer | Loss) -> str:
        """Return why an optimizer or loss is not supported; those of Keras are."""
        from anyaccel_tensorflow.variables import keras

        if keras().is_optimizer(spec.own) if isinstance(spec, Optimizer) else keras().is_loss(spec.own):
            runs_on = str(keras().module.backend.backend())
            return "" if runs_on == "tensorflow" else f"Keras runs on {runs_on}, not on TensorFlow"
        if isinstance(spec, Optimizer) and spec.own is not None:
            available = f"{', '.join(OPTIMIZERS)}, and classes of keras.optimizers"
            return f"TensorFlow supports named optimizers ({available}), not {spec.name}"
        return super().unsupported_reason(spec)


class TensorFlowPrecision(ComputesPrecision):
    """Policies of Keras, dtypes of variables, and TF32."""

    precisions: ClassVar[tuple[str, ...]] = PRECISIONS
    matmul_precisions: ClassVar[tuple[Any, ...]] = (True, False)

    def precision_reason(self, model: Any, precision: str, device: Device) -> str:
        """Layers of Keras have policies, variables of modules their dtypes."""
        from anyaccel_tensorflow.functional_call import AssigningCall, SpecModelCall, StatelessCall, functional_call

        call = functional_call(model)
        if isinstance(call, SpecModelCall):
            return codes_reason(model.spec, precision)
        if isinstance(call, AssigningCall) and precision != self.backend.dtype_of(model):
            return f"the variables of a {type(model).__name__} keep their dtype; models of Keras have dtype policies"
        return layers_reason(model, precision) if isinstance(call, StatelessCall) else ""

    def matmul_precision(self, value: Any) -> AbstractContextManager[Any]:
        """Whether TF32 is used."""
        from anyaccel_tensorflow.runtime_config import tensor_float_32

        return tensor_float_32().hold(value)

    def float32_note(self, model: Any, device: Device) -> str:
        """Return a note on matrix multiplications in TF32, TensorFlow's default on GPUs that have it."""
        import tensorflow as tf

        if device.kind != "gpu" or not tf.config.experimental.tensor_float_32_execution_enabled():
            return ""
        return (
            f"TensorFlow multiplies float32 in TF32 on {device} by default, with three digits, if the GPU supports "
            "it: set matmul_precision=False for full precision"
        )

    def remat_blocks(self, model: Any, remat: str) -> Sequence[str]:
        """Return the whole model for `tf.recompute_grad`; see `ComputesPrecision.remat_blocks`."""
        from anyaccel_tensorflow.functional_call import AssigningCall, functional_call

        is_function = not isinstance(functional_call(model), AssigningCall)
        return ("",) if remat == "blocks" and is_function else ()


class TensorFlowMemoryFigures(MemoryFigures):
    """Report buffers. The memory of a step is not covered, because XLA decides it for each device."""

    def buffers(self, model: Any) -> Mapping[str, TensorSpec]:
        """Return the specs of the buffers of a built model; otherwise raise a StateError."""
        return {name: _spec_of(variable) for name, variable in _variables(model).buffers.items()}


def _variables(model: Any) -> Any:
    from anyaccel_tensorflow.shape_inference import is_built
    from anyaccel_tensorflow.variables import keras, model_variables

    held = list(keras().walk(model))
    if not is_built(model, held):
        raise not_built_error(model)
    return model_variables(model, held)


def _spec_of(variable: Any) -> TensorSpec:
    dtype = getattr(variable.dtype, "name", variable.dtype)  # Keras gives a name, TensorFlow an object
    return TensorSpec(tuple(variable.shape), str(dtype))
