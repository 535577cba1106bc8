"""Custom loops of TensorFlow: a GradientTape's gradients over all processes; optimizers step once an update."""

from __future__ import annotations

import hashlib
import itertools
import math
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, update_wrapper
from types import MethodType
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np
import tensorflow as tf

from anyaccel.device import Device
from anyaccel.errors import AnyaccelError, CapabilityError, ConfigError, DataError, OutOfMemoryError, StateError
from anyaccel.user_level import user_level
from anyaccel_distributed.own_loop import Loop, LoopLoader, OwnLoops, Share
from anyaccel_distributed.own_loop.loader import Window
from anyaccel_distributed.own_loop.loop import OF_MODELS
from anyaccel_distributed.own_loop.loop_folder import check_counts, check_same
from anyaccel_distributed.own_loop.processes import is_out_of_memory
from anyaccel_tensorflow.object_location import is_optimizer
from anyaccel_tensorflow.shape_inference import batch_coupling
from anyaccel_tensorflow.variables import keras, model_variables, named_parts, parts, read, tf_variable, write

_FUNCTION_HINT = "use @loop.function instead of @tf.function"
_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError, tf.errors.CancelledError)
_MANY_TRACES = 6
_NO_SEED = 87654321
"""TensorFlow's default global seed for operations with a seed; setting it leaves their numbers unchanged."""
_DIGESTED = 4096
"""Number of elements of each tensor that identify a batch."""
_prepared: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""By id: a tf.Variable has no hash."""


class TensorFlowLoops(OwnLoops):
    """The custom loops of TensorFlow."""

    @property
    def loop(self) -> type[Loop]:
        return TensorFlowLoop


class TensorFlowLoop(Loop):
    """A loop of TensorFlow with a `GradientTape`, in processes that TensorFlow's collective operations join.

    `prepare` returns the same models and optimizers, and a loader for a `tf.data.Dataset`. With the last batch of an
    update, `gradient` sums the gradients of all processes in one message.

    ```python
    loop = aa.Loop(framework="tensorflow")
    model, optimizer, dataset = loop.prepare(model, optimizer, dataset)

    @loop.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = loop.gradient(tape, loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    for x, y in dataset:
        loss = step(x, y)
    ```
    """

    framework: ClassVar[str] = "tensorflow"
    attribute_hints: ClassVar[Mapping[str, str]] = {
        "backward": "write gradients = loop.gradient(tape, loss, variables)",
        **Loop.attribute_hints,
    }

    def __init__(self, *args: Any, **settings: Any) -> None:
        self._models: list[_Model] = []
        self._optimizers: list[_PreparedOptimizer] = []
        self._others: list[Any] = []
        self._window = Window()
        self._pending: frozenset[int] = frozenset()  # variables whose gradients no optimizer has received yet
        self._sites: dict[Any, _Site] = {}
        self._positions: dict[int, int] = {}  # positions of the trained variables, by id
        self._traced: _Traced | None = None  # the function that is being called, and perhaps traced
        self._n_functions = 0
        self._n_calls = Counter[tuple[int, int]]()  # of `gradient` for the same variables, in this batch
        self._row_tensors: dict[float | None, Any] = {}
        self._is_within = False  # `accumulate`
        self._memory_error: OutOfMemoryError | None = None  # of another process, within a traced step
        self._is_begun = False
        super().__init__(*args, **settings)
        self._check_settings()
        if self.num_processes > 1 and tf.compat.v1.random.get_seed(0)[0] == _NO_SEED:
            tf.random.set_seed(_NO_SEED)  # models, and the order of data sets, must be equal in all processes
        self._is_begun = True

    def _accumulation_changed(self) -> None:
        self._is_plain = self.num_processes == 1 and self.accumulation_steps == 1

    def _check_settings(self) -> None:
        if self.precision == "fp16-mixed":
            raise ConfigError(
                "Loop: precision='fp16-mixed' scales the loss, but in Keras a LossScaleOptimizer does that",
                available="'float32', 'bf16-mixed'",
                hint="write keras.config.set_dtype_policy('mixed_float16') before you "
                "create the model, optimizer = keras.optimizers.LossScaleOptimizer(optimizer), and "
                "loop.gradient(tape, optimizer.scale_loss(loss), variables)",
            )
        if self.precision not in (None, "float32", "bf16-mixed"):
            raise ConfigError(
                f"Loop: precision={self.precision!r} changes the dtype of a model's variables",
                available="'float32', 'bf16-mixed'",
                hint="write precision='bf16-mixed', or keras.config.set_dtype_policy('float64') before "
                "you create the model",
            )
        if self.sharding is not None:
            raise CapabilityError(
                "Loop: sharding='full' shards variables over processes, which TensorFlow does not support",
                hint="leave sharding out, or train a model of torch or JAX",
            )
        if self.options:
            raise ConfigError(
                f"Loop: options={self.options} are for an engine, but TensorFlow loops have no engine",
                hint="leave options out",
            )
        if self.sync_batchnorm and self.num_processes > 1:
            raise CapabilityError(
                "Loop: sync_batchnorm=True computes statistics over processes, which Keras layers do not support here",
                hint="write sync_batchnorm=False for statistics of the rows of each process (moving "
                "averages stay equal), or use keras.layers.GroupNormalization or LayerNormalization",
            )

    def _seed_framework(self, seed: int) -> None:
        if not self._is_begun:  # later, it would change the order of new data sets in one process only
            tf.random.set_seed(seed % 2**31)

    def _meet(self, what: str) -> None:
        if self.num_processes > 1:
            with self._processes.group.meeting(what):
                self._processes.gather_plain(None, what.replace("call", "in"))

    def _check_exchanges_apart(self) -> None:
        if any(model.trained for model in self._models):
            raise ConfigError(
                "find_batch_size() in several processes, but a model was prepared before it",
                hint="create and prepare the model within the function of the batch size",
            )

    # -- prepare ---------------------------------------------------------------------------------------------------

    def _make_loader(self, loader: Any, *settings: Any) -> LoopLoader:
        return (
            DatasetLoader(loader, *settings) if isinstance(loader, tf.data.Dataset) else LoopLoader(loader, *settings)
        )

    def _prepare(self, objects: Sequence[Any], frozen: bool) -> list[Any]:
        for value in objects:
            _check_preparable(value)
        prepared = [self._add_model(value, frozen) if _is_model(value) else value for value in objects]
        for value in prepared:
            if is_optimizer(value):
                self._add_optimizer(value)
            elif not _is_model(value):
                self._others.append(value)
                self._undo.append(self._others.pop)
        if self._models and self.num_processes > 1:
            self._processes.part()
        return prepared

    def _add_model(self, model: Any, frozen: bool) -> Any:
        if _prepared.get(id(model)) is model:
            raise ConfigError(
                f"this {type(model).__name__} is prepared already",
                hint="prepare each model once, and use the result of prepare(); call loop.close() before you use it "
                "in another Loop",
            )
        if not any(model_variables(model)):
            raise ConfigError(
                f"this {type(model).__name__} has no variables yet",
                hint="create them before prepare(): model.build((None, 5)) for rows of 5 columns, or call it once",
            )
        norm = "" if frozen else batch_coupling(model)
        if self.num_processes > 1:
            self._check_alike(model)
            if norm and self.sync_batchnorm is None:
                raise ConfigError(
                    f"{norm} normalizes over the rows of a batch, but each of {self.num_processes} "
                    "processes has only a part",
                    hint="write Loop(sync_batchnorm=False) for statistics of each process",
                )
        if self.precision == "bf16-mixed":
            layers = [part for part in parts(model) if keras().is_layer(part)]
            if not layers:
                raise ConfigError(
                    f"Loop: precision='bf16-mixed' is for Keras layers, but {type(model).__name__} has none",
                    hint="leave precision out, and cast in the model: tf.cast(x, tf.bfloat16)",
                )
            changed = [layer for layer in layers if layer.dtype_policy.name == "float32"]
            for layer in changed:
                layer.dtype_policy = "mixed_bfloat16"
            self._undo += [partial(setattr, layer, "dtype_policy", "float32") for layer in changed]
        model = self.accelerator.place(model)
        _prepared[id(model)] = model
        self._models.append(_Model(model, frozen, norm if self.num_processes > 1 else ""))
        new = [key for key in map(id, map(tf_variable, self._models[-1].trained)) if key not in self._positions]
        for key in new:
            self._positions.setdefault(key, len(self._positions))
        self._undo += [self._models.pop, partial(_prepared.pop, id(model)), partial(self._forget, new)]
        if self.process_index > 0:
            self._models[-1].set_apart(self.process_index)
        return model

    def _forget(self, keys: Sequence[int]) -> None:
        """Forget variables of a model that is released; others may get their ids."""
        for key in keys:
            self._positions.pop(key, None)
        self._sites.clear()

    def _check_alike(self, model: Any) -> None:
        variables = model_variables(model)
        digests = {
            name: _digest([read(v).numpy()]) for name, v in {**variables.parameters, **variables.buffers}.items()
        }
        difference = self._processes.first_difference(digests, "in loop.prepare()")
        if difference is not None:
            name, rank = difference
            raise DataError(
                f"the processes have different {type(model).__name__} models: {name!r} of process {rank} differs "
                "from process 0",
                hint="create the model after the Loop, which seeds all processes "
                "equally, or seed them yourself: keras.utils.set_random_seed(0)",
            )

    def _add_optimizer(self, optimizer: Any) -> None:
        if _prepared.get(id(optimizer)) is optimizer:
            raise ConfigError(
                f"this {type(optimizer).__name__} is prepared already",
                hint="prepare each optimizer once; call loop.close() before you use it in another Loop",
            )
        if optimizer.gradient_accumulation_steps and self.accumulation_steps > 1:
            raise ConfigError(
                f"{type(optimizer).__name__}(gradient_accumulation_steps={optimizer.gradient_accumulation_steps}) and "
                f"Loop(accumulate={self.accumulation_steps}) would accumulate twice",
                hint="leave gradient_accumulation_steps out; the loop divides by the rows of the whole window",
            )
        self.accelerator.place(optimizer)
        prepared = _PreparedOptimizer(optimizer)
        if prepared.is_scaling and not optimizer.built:  # an earlier trace would keep the first scale forever
            trained = [variable for model in self._models for variable in model.trained]
            if len(self._optimizers) > 0 or not trained:
                raise ConfigError(
                    "a LossScaleOptimizer has no loss scale until it is built",
                    hint="build it before prepare(): optimizer.build(model.trainable_variables)",
                )
            optimizer.build(trained)
        _prepared[id(optimizer)] = optimizer
        self._optimizers.append(prepared)
        self._undo += [
            self._optimizers.pop,
            partial(_prepared.pop, id(optimizer)),
            partial(delattr, optimizer, "apply"),
        ]
        optimizer.apply = partial(self._apply, prepared)
        if prepared.is_scaling:
            optimizer.was_skipped = False
            scale_loss = optimizer.scale_loss

            def scaled(loss: Any) -> Any:
                prepared.has_scaled = True
                return scale_loss(loss)

            optimizer.scale_loss = scaled
            self._undo.append(partial(delattr, optimizer, "scale_loss"))

    # -- steps -----------------------------------------------------------------------------------------------------

    def function(self, function: Callable[..., Any] | None = None, **settings: Any) -> Any:
        """Return a step as a `tf.function`, traced for the first batch, and again once for any number of rows.

        If batches are accumulated, it is traced twice: for batches that end an update, and for the others. `is_update`
        is a plain bool in each.

        ```python
        @loop.function
        def step(x, y): ...
        ```

        Args:
            function: Function that computes one batch.
            settings: Settings of `tf.function`; `reduce_retracing` is on.

        Raises:
            ConfigError: `jit_compile` is set in several processes.
        """
        if function is None:
            return partial(self.function, **settings)
        if settings.get("jit_compile") and self.num_processes > 1:
            raise ConfigError(
                "loop.function(jit_compile=True) in several processes: XLA does not compile TensorFlow's collective "
                "operations",
                hint="compile only the model: forward = tf.function(model, jit_compile=True)",
            )
        self._n_functions += 1
        return LoopFunction(self, function, self._n_functions, {"reduce_retracing": True, **settings})

    @contextmanager
    def accumulate(self, *models: Any) -> Iterator[None]:
        """Mark the code for one batch of an update; needed if the batch comes from no prepared loader."""
        share = self._iterations.training_share
        if not self._window.is_current(share, within=False):
            self._begin(share)
        before, self._is_within = self._is_within, True
        try:
            yield
        finally:
            self._is_within = before

    def _begin(self, share: Share | None) -> None:
        if self._window.is_closing and any(site.is_open for site in self._sites.values()):
            raise ConfigError(
                "loop.gradient() was called for some batches of an update, but not for the last one",
                cause="the accumulated gradients would become part of another update",
                hint="call it for each batch, and run optimizers only at updates: if loop.is_update: ...",
            )
        self._window.begin(share, self.accumulation_steps)
        if self._window.n_batches == 1:
            for site in self._sites.values():
                site.n_batches = 0
        self._n_calls.clear()
        if self._window.is_closing and not self._optimizers:
            self.step += 1

    @property
    def is_update(self) -> bool:
        traced = self._traced
        if traced is not None and not tf.executing_eagerly():
            return traced.is_closing
        return self._will_close()

    def _will_close(self) -> bool:
        window, share = self._window, self._iterations.training_share
        if window.is_current(share, within=self._is_within):
            return window.is_closing
        return window.will_close(share, self.accumulation_steps)

    @property
    def _is_whole(self) -> bool:
        return (self._window.is_closing or self._window.n_batches == 0) and not (self._pending and self._optimizers)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def gradient(self, tape: Any, loss: Any, variables: Any, count: Any = None) -> Any:
        """Return gradients like `tape.gradient`, of the mean over all rows of the update in all processes.

        ```python
        gradients = loop.gradient(tape, loss, model.trainable_variables)  # a mean over the rows of the batch
        gradients = loop.gradient(tape, total, variables, count=n_tokens)  # a sum over tokens
        ```

        Args:
            tape: A `tf.GradientTape` that has recorded the loss.
            loss: A mean over the rows of the batch; with `count`, a sum.
            variables: Variables of prepared models, which may be nested.
            count: Number of terms in the sum, a number or a tensor. The sums of all batches of the update and all
                processes are added and divided by the total of the counts.

        Returns:
            The gradient of each variable; zeros for a batch that is not the last of its update, after which optimizers
            do nothing.

        Raises:
            ConfigError: The loop cannot know the batch of this call, or variables are not prepared.
            DataError: The loss is not a scalar.
            FrameworkError: Another process has ended, or does not answer.
        """
        traced = self._current()
        if traced is None:
            share = self._iterations.training_share
            if not self._window.is_current(share, within=self._is_within):
                self._begin(share)
        flat = tf.nest.flatten(variables)
        keys = [id(tf_variable(variable)) for variable in flat]
        for variable, key in zip(flat, keys, strict=True):
            if key not in self._positions:
                raise ConfigError(
                    f"loop.gradient() was given {getattr(variable, 'path', variable.name)!r}, which is not a "
                    "variable of a prepared and trained model",
                    hint="prepare all trained models, and use the result of prepare(): model = loop.prepare(model)",
                )
        if count is None and loss.shape.rank != 0:
            raise DataError(
                f"loop.gradient() received a loss of shape {loss.shape}, which is not a mean over rows",
                hint="write tf.reduce_mean(loss), or pass the number "
                "of terms: loop.gradient(tape, loss, variables, count=tf.size(loss))",
            )
        gradients = tape.gradient(loss, flat)
        site = self._site(keys, traced, is_counted=count is not None)
        if not self._is_plain:
            gradients = self._of_update(site, flat, gradients, (loss, count), traced)
        elif count is not None:
            gradients = [None if g is None else _divided(g, count) for g in gradients]
        if traced is None:
            self._iterations.weigh()
            self._pending |= set(keys)
            if self.num_processes > 1:
                loss.anyaccel_share = self._iterations.training_share  # for `reduce`, after other batches
        else:
            traced.computed |= set(keys)
            traced.needs_rows |= count is None and not self._is_plain
        return tf.nest.pack_sequence_as(variables, gradients)

    def _site(self, keys: Sequence[int], traced: _Traced | None, *, is_counted: bool) -> _Site:
        """Return the site of this call in the code, identified by values that are equal in all processes."""
        variables = (self._positions[keys[0]] if keys else 0, len(keys))
        number = self._n_calls[variables]
        self._n_calls[variables] += 1
        place = (0 if traced is None else traced.number, number, *variables)
        site = self._sites.setdefault(place, _Site(place, keys, is_counted=is_counted))
        site.check(keys, is_counted=is_counted)
        if self.accumulation_steps > 1:
            if traced is None:
                site.is_open = not self._window.is_closing
                site.n_batches += 1
                if number > 0 and not site.is_open:
                    site.check_batches(self._sites[(0, 0, *variables)])
            else:
                traced.sites.append(site)
        return site

    def _current(self) -> _Traced | None:
        """Return the function that is being traced, or None."""
        if tf.executing_eagerly():
            return None
        if self._traced is None or self._traced.graph is not tf.compat.v1.get_default_graph():
            raise ConfigError(
                "the step is traced by a tf.function unknown to the loop, so it would reuse facts "
                "about the first batch",
                available="loop.gradient() and optimizers in a function of the loop, outside of tf.function, "
                "tf.cond and tf.while_loop in it",
                hint=_FUNCTION_HINT,
            )
        return self._traced

    def _rows_of(self, share: Share | None) -> float:
        """Return the number of rows of this process in a batch; NaN if unknown."""
        return math.nan if share is None or share.rows is None or share.total is None else float(share.rows)

    def _of_update(
        self,
        site: _Site,
        variables: Sequence[Any],
        gradients: Sequence[Any],
        loss_and_count: tuple[Any, Any],
        traced: _Traced | None,
    ) -> list[Any]:
        loss, count = loss_and_count
        share = self._iterations.training_share
        if count is None and math.isnan(self._rows_of(share)):
            raise _no_rows()
        rows = tf.constant(self._rows_of(share), tf.float32) if traced is None else traced.rows
        is_closing = self._window.is_closing if traced is None else traced.is_closing
        if count is None:
            weight = terms = rows
        else:  # the row of a process without rows does not count
            weight = tf.cast(tf.not_equal(rows, 0.0), tf.float32)
            terms = weight * tf.cast(count, tf.float32)
        results = [
            None if gradient is None else tf.zeros(variable.shape, variable.dtype)
            for variable, gradient in zip(variables, gradients, strict=True)
        ]
        for dtype in (tf.float32, tf.float64):
            places = [i for i, gradient in enumerate(gradients) if gradient is not None and _wide(gradient) == dtype]
            if not places:
                continue
            dense = [tf.reshape(tf.cast(tf.convert_to_tensor(gradients[i]), dtype), [-1]) for i in places]
            message = tf.math.multiply_no_nan(tf.concat(dense, 0), tf.cast(weight, dtype))
            message = tf.concat([message, tf.cast(terms, dtype)[None]], 0)
            sums = site.sums_of(message, variables[places[0]]) if self.accumulation_steps > 1 else None
            if not is_closing:
                sums.assign_add(message)  # type: ignore[union-attr]
                continue
            if sums is not None:
                message = sums + message
                sums.assign(tf.zeros_like(sums))
            message = self._sum_of_all(message, (site.place, dtype.name), loss)
            means = tf.math.divide_no_nan(message[:-1], message[-1])
            sizes = [math.prod(variables[i].shape) for i in places]
            for i, mean in zip(places, tf.split(means, sizes), strict=True):
                results[i] = tf.cast(tf.reshape(mean, variables[i].shape), variables[i].dtype)
        if is_closing:
            # Replace moving averages of layers by their means over processes, so that all have the same
            for i, model in enumerate(self._models):
                if not model.norm or model.keys.isdisjoint(site.keys):
                    continue
                held = [tf_variable(variable) for variable in model.statistics]
                flat = tf.concat([tf.reshape(tf.cast(variable, tf.float32), [-1]) for variable in held], 0)
                weight = tf.where(tf.math.is_nan(rows), 1.0, rows)
                message = tf.concat([tf.math.multiply_no_nan(flat, weight), weight[None]], 0)
                message = self._sum_of_all(message, (site.place, "statistics", i), 0.0)
                means = tf.split(message[:-1] / message[-1], [math.prod(variable.shape) for variable in held])
                for variable, mean in zip(held, means, strict=True):
                    variable.assign(tf.cast(tf.reshape(mean, variable.shape), variable.dtype))
        return results

    def _sum_of_all(self, message: Any, call: Any, loss: Any) -> Any:
        if self.num_processes == 1:
            return message
        group, device = self._processes.group, self._models[0].device
        if self._processes.is_trying:
            if tf.executing_eagerly():
                self._processes.check_memory()
            else:

                def check(last: Any, _: Any) -> Any:
                    try:
                        self._processes.check_memory()
                    except OutOfMemoryError as error:  # of another process; the graph would lose its kind
                        self._memory_error = error
                        raise
                    return last

                with tf.device("/CPU:0"):  # computed after the message, and before it is sent
                    last = tf.numpy_function(check, [message[-1:], loss], message.dtype)
                message = tf.concat([message[:-1], tf.ensure_shape(last, (1,))], 0)
        with tf.device(device):
            if tf.executing_eagerly():
                return group.attempt("average the gradients", partial(group.sum_of_all, message, call, device))
            return group.sum_of_all(message, call, device)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def _apply(self, prepared: _PreparedOptimizer, grads: Any, trainable_variables: Any = None) -> None:
        """Replace `optimizer.apply`, and with it `apply_gradients`: do nothing until an update is complete."""
        traced, optimizer = self._current(), prepared.optimizer
        grads = list(grads)
        if trainable_variables is None:
            raise ConfigError(
                "optimizer.apply() received gradients without their variables",
                hint="write optimizer.apply_gradients(zip(gradients, variables))",
            )
        variables = list(trainable_variables)
        keys = {id(tf_variable(variable)) for variable in variables}
        pending = self._pending | (traced.computed if traced is not None else set())
        if not keys <= pending:
            raise ConfigError(
                f"{type(optimizer).__name__} received gradients that do not come from loop.gradient()",
                cause="in several processes, each would train only on its own rows",
                hint="write gradients = loop.gradient(tape, loss, model.trainable_variables), once for each update",
            )
        if prepared.is_scaling and not prepared.has_scaled:
            raise ConfigError(
                "the LossScaleOptimizer would divide gradients by a loss scale, but the loss was not multiplied by it",
                hint="write loop.gradient(tape, optimizer.scale_loss(loss), model.trainable_variables)",
            )
        prepared.has_scaled = False
        is_closing = self._window.is_closing if traced is None else traced.is_closing
        if is_closing:
            prepared.build(variables)
            prepared.apply(grads, variables)
        if traced is not None:
            traced.given |= keys
            traced.applied.append(prepared)
            return
        self._pending -= keys
        if is_closing:
            self._count(prepared)

    # -- calls of steps --------------------------------------------------------------------------------------------

    def call(self, function: LoopFunction, args: Any, kwargs: Any) -> Any:
        """Call a step, trace it if necessary, and record its effects."""
        share = self._iterations.training_share
        rows = self._rows_of(share)
        traced = function.traced(is_closing=self._will_close())
        if traced.needs_rows and math.isnan(rows):
            raise _no_rows()
        before, self._traced, calls = self._traced, traced, self._n_calls
        try:
            result = traced.run(*args, **kwargs) if self._is_plain else traced.run(self._tensor(rows), *args, **kwargs)
        except tf.errors.OpError as error:
            elsewhere, self._memory_error = self._memory_error, None
            if elsewhere is not None:
                raise elsewhere from None
            if is_out_of_memory(error):
                raise
            if self.num_processes > 1 and (isinstance(error, _LOST) or "ollective" in str(error)):
                self._processes.group.attempt("average the gradients", partial(_raise, error))
            raise
        except Exception as error:
            if isinstance(error.__context__, AnyaccelError):  # which autograph has wrapped in another error
                raise error.__context__ from None
            raise
        finally:
            self._traced, self._n_calls = before, calls
        if traced.is_new:
            traced.finish()
        if traced.has_gradients:
            self._iterations.weigh()
            if not self._window.is_current(share, within=self._is_within):
                self._begin(share)
        if traced.leaves or traced.takes:
            self._pending = (self._pending | traced.leaves) - traced.takes
        for site in traced.sites:
            site.is_open = not traced.is_closing
        if traced.is_closing:
            for prepared in traced.applied:
                self._count(prepared)
        if self.num_processes > 1:
            for leaf in tf.nest.flatten(result):
                if isinstance(leaf, tf.Tensor):
                    leaf.anyaccel_share = share  # for `reduce`, after other batches
        return result

    def begin_trace(self, rows: Any) -> None:
        """Note that the called function is being traced."""
        assert self._traced is not None
        self._traced.begin(rows)
        self._n_calls = Counter()  # another one: `call` goes on with its own

    @property
    def is_plain(self) -> bool:
        """Whether an update consists of one batch in this process alone."""
        return self._is_plain

    @property
    def device_name(self) -> str:
        """TensorFlow's name of the loop's device."""
        return self.accelerator.device_string("tensorflow")

    def _tensor(self, rows: float) -> Any:
        key = None if math.isnan(rows) else rows
        if key not in self._row_tensors:
            self._row_tensors[key] = tf.constant(rows, tf.float32)
        return self._row_tensors[key]

    def _count(self, prepared: _PreparedOptimizer) -> None:
        """Count an optimizer's update of variables."""
        if prepared.is_scaling and prepared.was_skipped():
            return
        if prepared is self._optimizers[0]:
            self.step += 1

    # -- state -----------------------------------------------------------------------------------------------------

    def unwrap(self, model: Any) -> Any:
        """Return the prepared model, which is never wrapped."""
        return model

    def _model_states(self) -> dict[str, Any]:
        return {
            f"{OF_MODELS}{i} {path}": read(state).numpy()
            for i, model in enumerate(self._models)
            for path, state in model.generators.items()
        }

    def _set_model_states(self, states: Mapping[str, Any]) -> None:
        for i, model in enumerate(self._models):
            for path, state in model.generators.items():
                if f"{OF_MODELS}{i} {path}" in states:
                    write(state, states[f"{OF_MODELS}{i} {path}"])

    def _state(self) -> dict[str, Any]:
        return {
            "models": [{name: read(v) for name, v in model.variables.items()} for model in self._models],
            "optimizers": [prepared.state() for prepared in self._optimizers],
            "others": [other.state_dict() for other in self._others],
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        check_counts(state, models=self._models, optimizers=self._optimizers, others=self._others)
        for saved, model in zip(state["models"], self._models, strict=True):
            ours = {name: list(variable.shape) for name, variable in model.variables.items()}
            check_same("model", "has shape", ours, {name: list(array.shape) for name, array in saved.items()})
        for saved, prepared in zip(state["optimizers"], self._optimizers, strict=True):
            prepared.check_state(saved)
        for saved, model in zip(state["models"], self._models, strict=True):
            for name, variable in model.variables.items():
                write(variable, saved[name])
        for saved, prepared in zip(state["optimizers"], self._optimizers, strict=True):
            prepared.load(saved)
        for saved, other in zip(state["others"], self._others, strict=True):
            other.load_state_dict(saved)
        self._drop_update()

    def _drop_update(self) -> None:
        self._window, self._pending = Window(), frozenset()
        for site in self._sites.values():
            site.clear()

    # -- values ----------------------------------------------------------------------------------------------------

    def _to_numpy(self, tensor: Any) -> Any:
        if isinstance(tensor, tf.RaggedTensor):
            return tensor.to_list()
        if not tf.is_tensor(tensor) and not keras().is_variable(tensor):
            return None
        array = np.asarray(tf_variable(tensor).numpy())
        return array.tolist() if array.dtype == object else array  # text

    def _concatenated(self, rows: Sequence[np.ndarray]) -> Any:
        with tf.device("/CPU:0"):
            return tf.constant(np.concatenate(rows) if rows[0].ndim else rows[0])


class LoopFunction:
    """A step of a loop as a `tf.function`; see `TensorFlowLoop.function`.

    Args:
        loop: Loop of the step.
        function: Function that computes one batch.
        number: Number of the function within the loop, from 1.
        settings: Settings of `tf.function`.
    """

    def __init__(self, loop: TensorFlowLoop, function: Callable[..., Any], number: int, settings: Any) -> None:
        self._loop, self._function = loop, function
        self._of_updates = _Traced(loop, function, number, settings, is_closing=True)
        self._of_others = _Traced(loop, function, number, settings, is_closing=False)
        update_wrapper(self, function)

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else MethodType(self, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not tf.executing_eagerly():  # a part of another step
            return self._function(*args, **kwargs)
        return self._loop.call(self, args, kwargs)

    def traced(self, *, is_closing: bool) -> _Traced:
        """Return the traced step for a batch; a step without gradients is traced only once."""
        of_updates = self._of_updates
        return of_updates if is_closing or (not of_updates.is_new and not of_updates.has_gradients) else self._of_others

    def experimental_get_tracing_count(self) -> int:
        """Return the number of traces, as in `tf.function`."""
        count: int = sum(traced.run.experimental_get_tracing_count() for traced in (self._of_updates, self._of_others))
        return count


class _Traced:
    """A step for batches that end an update, or for the others, with its effects on gradients.

    Attributes:
        run: The tf.function; if a loop is not plain, its first argument is the number of rows of this process.
        is_closing: Whether batches end an update.
        number: Number of the function.
        graph: Graph that was traced last.
        rows: Its tensor with the number of rows.
        is_new: Whether it was traced since `finish`.
        computed, given: Variables whose gradients were computed, and passed to optimizers, in the trace so far.
        applied: Optimizers that are called.
        sites: Sites that compute gradients, if they are accumulated.
        leaves, takes: Variables whose gradients are left to other functions, or taken from them.
        has_gradients: Whether gradients are computed.
        needs_rows: Whether a loss is a mean over the rows of a batch.
    """

    def __init__(
        self, loop: TensorFlowLoop, function: Callable[..., Any], number: int, settings: Any, *, is_closing: bool
    ) -> None:
        self.number, self.is_closing = number, is_closing
        self._name, self._n_traces = getattr(function, "__name__", "the step"), 0
        self.graph: Any = None
        self.rows: Any = None
        self.is_new, self.has_gradients, self.needs_rows = True, False, False
        self.computed, self.given = set[int](), set[int]()
        self.applied: list[_PreparedOptimizer] = []
        self.sites: list[_Site] = []
        self.leaves = self.takes = frozenset[int]()
        device = loop.device_name

        def step(*args: Any, **kwargs: Any) -> Any:
            loop.begin_trace(None)
            with tf.device(device):
                return function(*args, **kwargs)

        def counted_step(rows: Any, *args: Any, **kwargs: Any) -> Any:
            loop.begin_trace(rows)
            with tf.device(device):
                return function(*args, **kwargs)

        # a partial has no code, by which TensorFlow counts traces: steps of all loops would be one function to it
        self.run = tf.function(partial(step if loop.is_plain else counted_step), **settings)

    def begin(self, rows: Any) -> None:
        """Begin a trace."""
        self.graph, self.rows, self.is_new = tf.compat.v1.get_default_graph(), rows, True
        self.computed, self.given, self.applied, self.sites = set(), set(), [], []
        self.needs_rows = False

    def finish(self) -> None:
        """End a trace."""
        self.is_new = False
        self.leaves, self.takes = frozenset(self.computed - self.given), frozenset(self.given - self.computed)
        self.has_gradients = bool(self.computed)
        self._n_traces += 1
        if self._n_traces == _MANY_TRACES:
            warnings.warn(
                f"{self._name}() was traced {_MANY_TRACES} times, which takes longer than calling it. Hint: "
                "pass tensors, such as tf.constant(rate), instead of Python numbers that change",
                RuntimeWarning,
                stacklevel=user_level(),
            )


class _Site:
    """One site in the code that computes gradients, and their sums in the current window.

    Args:
        place: Number of the function, and of the call in it.
        keys: Ids of the variables.
        is_counted: Whether the call passes the number of terms of its loss.

    Attributes:
        is_open: Whether sums are being accumulated.
        n_batches: Number of batches of the update with this call.
    """

    def __init__(self, place: Any, keys: Sequence[int], *, is_counted: bool) -> None:
        self.place, self.keys, self._is_counted = place, tuple(keys), is_counted
        self.is_open, self.n_batches = False, 0
        self._sums: dict[Any, tf.Variable] = {}

    def check(self, keys: Sequence[int], *, is_counted: bool) -> None:
        """Check that each call is equal.

        Raises:
            ConfigError: The calls differ.
        """
        if self.keys != tuple(keys):
            raise ConfigError(
                "loop.gradient() is called for other variables, or in another order, than in the previous batch",
                hint="compute gradients in one function for each kind of step",
            )
        if is_counted != self._is_counted:
            raise ConfigError(
                "loop.gradient() was called with count= for one batch, but without it for another",
                cause="the number of rows, such as x.shape[0], is None in a function that is traced for any number of "
                "rows",
                hint="pass count= for each batch, as a tensor: count=tf.shape(x)[0]",
            )

    def check_batches(self, first: _Site) -> None:
        """Check that the call was made in as many batches of the update as the first call for the same variables.

        Raises:
            ConfigError: It was not, so one of them has accumulated losses of both.
        """
        if self.n_batches != first.n_batches:
            raise ConfigError(
                "loop.gradient() was called a different number of times for the same variables in "
                "the batches of an update",
                cause="the sums of one loss would be divided by the count of another",
                hint="call it the same number of times in each batch; if a batch has no such loss, use 0 for the loss "
                "and its count",
            )

    def sums_of(self, message: Any, variable: Any) -> Any:
        """Return the variable for the accumulated sums of an exchange, on the device of a variable of the model."""
        dtype = message.dtype
        if dtype not in self._sums:
            with tf.init_scope(), tf.device(tf_variable(variable).device):
                self._sums[dtype] = tf.Variable(tf.zeros(message.shape, dtype), trainable=False)
        return self._sums[dtype]

    def clear(self) -> None:
        """Begin a window."""
        self.is_open, self.n_batches = False, 0
        for sums in self._sums.values():
            sums.assign(tf.zeros_like(sums))


class _Model:
    """A prepared model.

    Attributes:
        model: The placed model.
        trained: Its variables that gradients change.
        keys: Ids of these variables.
        device: TensorFlow's name of their device.
        generators: Variables that hold random states, by path; they differ between processes.
        variables: All other variables, by path.
        norm: Name of a layer with statistics over the rows of a process, or `""`.
        statistics: Variables of such layers.
    """

    def __init__(self, model: Any, frozen: bool, norm: str) -> None:
        self.model, self.norm = model, norm
        parameters, buffers = model_variables(model)
        self.trained = [] if frozen else list(parameters.values())
        self.keys = {id(tf_variable(variable)) for variable in self.trained}
        self.device = tf_variable(next(iter({**parameters, **buffers}.values()))).device
        self.generators = {path: part.state for path, part in named_parts(model) if keras().is_random(part)}
        states = {id(state) for state in self.generators.values()}
        self.variables = {name: v for name, v in {**parameters, **buffers}.items() if id(v) not in states}
        norms = [part for part in parts(model) if norm and batch_coupling(part)]
        held = {id(variable) for part in norms for variable in model_variables(part).buffers.values()}
        self.statistics = [v for v in buffers.values() if id(v) in held and tf.as_dtype(v.dtype).is_floating]

    def set_apart(self, rank: int) -> None:
        """Make random numbers different in the process of this rank."""
        for state in self.generators.values():
            value = read(state).numpy()
            seed = [rank, *(int(number) % 2**32 for number in value.flat)]
            write(state, np.random.default_rng(seed).integers(2**31, size=value.shape).astype(value.dtype))


class _PreparedOptimizer:
    """An optimizer that steps when an update is complete.

    Attributes:
        optimizer: The prepared optimizer.
        apply: Its original method.
        is_scaling: Whether it undoes a loss scale.
        has_scaled: Whether a loss was multiplied by the scale since the last update.
    """

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.apply = optimizer, optimizer.apply
        self.is_scaling = hasattr(optimizer, "scale_loss") and hasattr(optimizer, "inner_optimizer")
        self.has_scaled = False
        self._saved: Mapping[str, Any] | None = None
        self._n_updates = 0

    def build(self, variables: Sequence[Any]) -> None:
        """Create the variables of an unbuilt optimizer, outside of a trace."""
        if self.optimizer.built:
            return
        with tf.init_scope():
            self.optimizer.build(variables)
            if self._saved is not None:
                saved, self._saved = self._saved, None
                self.check_state(saved)
                self.load(saved)

    def was_skipped(self) -> bool:
        """Return whether the last update was skipped, as gradients were not finite."""
        before, self._n_updates = self._n_updates, int(self.optimizer.iterations.numpy())
        self.optimizer.was_skipped = before == self._n_updates
        return bool(self.optimizer.was_skipped)

    def state(self) -> Mapping[str, Any]:
        """Return its variables in order; empty if it is not built."""
        if not self.optimizer.built:
            return self._saved or {"names": [], "values": []}
        variables = list(self.optimizer.variables)
        return {"names": [variable.path for variable in variables], "values": [read(v) for v in variables]}

    def check_state(self, saved: Mapping[str, Any]) -> None:
        """Compare with a loaded state.

        Raises:
            StateError: The state belongs to another optimizer.
        """
        if not saved["names"] or not self.optimizer.built:
            return
        variables = list(self.optimizer.variables)
        kind = type(self.optimizer).__name__
        if len(variables) != len(saved["values"]):
            raise StateError(
                f"the checkpoint belongs to another optimizer: {len(saved['values'])} variables, but this "
                f"{kind} has {len(variables)}",
                hint="create the same optimizer as in the run that wrote the checkpoint",
            )
        for name, value, variable in zip(saved["names"], saved["values"], variables, strict=True):
            if tuple(value.shape) != tuple(variable.shape):
                raise StateError(
                    f"the checkpoint belongs to another optimizer: {name!r} has shape {list(value.shape)} "
                    f"there, but {list(variable.shape)} here",
                    hint="create the same optimizer as in the run that wrote the checkpoint",
                )

    def load(self, saved: Mapping[str, Any]) -> None:
        """Set the result of `state`, now or when the optimizer is built."""
        if not saved["names"]:
            return
        if not self.optimizer.built:
            self._saved = saved
            return
        for value, variable in zip(saved["values"], self.optimizer.variables, strict=True):
            write(variable, value)
        self._n_updates = int(self.optimizer.iterations.numpy())


class DatasetLoader(LoopLoader):
    """A `tf.data.Dataset`, whose order depends on the number of iterations, and shows in its first batch."""

    def __init__(self, loader: Any, *settings: Any) -> None:
        super().__init__(loader, *settings)
        if self.accelerator.device.kind == "cpu":
            self._in_turn = True  # nothing is copied, and TensorFlow itself reads ahead: dataset.prefetch()
        self._is_there = self.accelerator.device == Device("cpu", 0)
        self._n_epochs = 0  # that were begun
        self._first = ""
        self._expected: str | None = None
        every = self.processes.gather_plain(str(loader.element_spec), "in loop.prepare()")
        rank = next((rank for rank, other in enumerate(every) if other != every[0]), None)
        if rank is not None:
            raise DataError(
                f"the data set has other elements in process {rank}: {every[rank]}",
                available=f"{every[0]}, as in process 0",
                hint="create the data set in the same way in every process",
            )

    def set_epoch(self, epoch: int) -> None:
        """Refuse an epoch: the order of a data set cannot be set."""
        raise ConfigError(
            "set_epoch() of a tf.data.Dataset, whose order depends on its seed and its number of iterations",
            hint="create a data set for the epoch: dataset.shuffle(n, seed=epoch, reshuffle_each_iteration=False)",
        )

    def _moved(self, batch: Any) -> Any:
        return batch if self._is_there else super()._moved(batch)

    def _batches(self) -> Iterator[Any]:
        self._n_epochs += 1
        batches = iter(self.loader)
        first = next(batches, self.END)
        if first is self.END:
            return iter(())
        arrays = [np.asarray(leaf) for leaf in tf.nest.flatten(first, expand_composites=True)]
        self._first = _digest([array.reshape(-1)[:: max(1, array.size // _DIGESTED)] for array in arrays])
        expected, self._expected = self._expected, None
        if expected is not None and expected != self._first:
            raise StateError(
                "the data set returns other rows than in the run that wrote the checkpoint",
                cause="rows are shuffled without a seed, or this data set was iterated over before",
                hint="create it after Loop(seed=0), or set a seed for each shuffle: dataset.shuffle(n, seed=0)",
            )
        if self.processes.size > 1:
            self._check_alike(self._first)
        return itertools.chain([first], batches)

    def _checked(self, batches: Iterator[Any]) -> Iterator[Any]:
        return batches  # `_batches` has checked the first

    def _check_alike(self, checksum: str | None, what: str = "the first batch") -> None:
        if len(set(self.processes.gather_plain(checksum, "at the first batch of a data set"))) > 1:
            raise DataError(
                "the data set returns other rows in each process",
                cause="it was shuffled without a seed before the Loop was created, or split by shard()",
                hint="create it after the Loop, without shard(); or set a seed for each shuffle: dataset.shuffle(n, "
                "seed=0)",
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the position."""
        return {**super().state_dict(), "begun": self._n_epochs, "first": self._first if self.given else ""}

    def load_state_dict(self, state: Mapping[str, Any], *settings: Any) -> None:
        """Resume from this position in the next iteration."""
        super().load_state_dict(state, *settings)
        for _ in range(self._n_epochs, state["begun"] - bool(state["given"])):
            iter(self.loader)  # each has the next order
            self._n_epochs += 1
        self._expected = state["first"] or None


def _is_model(candidate: Any) -> bool:
    return not is_optimizer(candidate) and (keras().is_part(candidate) or keras().is_variable(candidate))


def _check_preparable(candidate: Any) -> None:
    module = sys.modules.get("keras")
    if module is not None and isinstance(candidate, module.metrics.Metric):
        raise DataError(
            f"prepare() cannot prepare the metric {candidate.name!r}: each process would see only its own rows",
            hint="update it with the rows of all processes: metric.update_state(*loop.gather((y, predictions)))",
        )
    if _is_model(candidate) or is_optimizer(candidate):
        return
    if isinstance(candidate, type) or not (hasattr(candidate, "state_dict") and hasattr(candidate, "load_state_dict")):
        raise DataError(
            f"prepare() cannot prepare a {type(candidate).__name__}",
            cause="it is not a model, optimizer, variable or iterable, and has no state_dict() and load_state_dict()",
            hint="prepare a list of batches as another iterable: loop.prepare(model, collections.deque(batches))"
            if hasattr(candidate, "shape")
            else "write model, optimizer, dataset = loop.prepare(model, optimizer, dataset)",
        )


def _no_rows() -> ConfigError:
    return ConfigError(
        "loop.gradient() does not know the number of rows in the mean of the loss",
        hint="prepare the data set, or pass the number: loop.gradient(tape, loss * len(x), variables, count=len(x))",
    )


def _wide(gradient: Any) -> Any:
    """Return the dtype of accumulated gradients."""
    if gradient.dtype.is_complex:
        raise CapabilityError(
            "loop.gradient() does not support complex variables, because TensorFlow's collective operations do not "
            "sum them",
            hint="store the real and imaginary parts in two variables",
        )
    return tf.float64 if gradient.dtype == tf.float64 else tf.float32


def _divided(gradient: Any, count: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.math.divide_no_nan(gradient.values, tf.cast(count, gradient.dtype))
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return tf.math.divide_no_nan(gradient, tf.cast(count, gradient.dtype))


def _digest(arrays: Sequence[np.ndarray]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(repr(array.tolist()).encode() if array.dtype == object else np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _raise(error: BaseException) -> None:
    raise error
