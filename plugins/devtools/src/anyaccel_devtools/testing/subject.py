"""Subject: the fixtures that describe a backend to the kit; a plugin author writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

import numpy as np
import pytest

from anyaccel.backend import CAPABILITIES, Backend, Compute, Exchange
from anyaccel.device import Device
from anyaccel_devtools.testing.harness import Harness

STANDARD_MODEL = "SequentialMLP"
# Whether steps are run in one call is declared by the program, so that those tests start at Compute.
_CLASSES: dict[str, type] = {**CAPABILITIES, "backend": Backend, "multi_step": Compute}


class Subject:
    """Describe a backend to the kit. Derive from this class, and define the fixtures that the kit cannot derive from
    the backend:

        class TorchSubject(Subject):
            @pytest.fixture
            def backend(self):
                return TorchBackend()

            @pytest.fixture
            def new_tensor(self):
                return lambda: torch.zeros(3)

        globals().update(suite(TorchSubject))

    `backend` and `new_tensor` are always needed, `from_numpy` and `to_numpy` if the backend is not an `Exchange`, and
    `model` if it computes but does not offer SequentialMLP in `models()`. The other fixtures enable more tests.

    Attributes:
        capability: Capability that a test class checks: `backend`, `exchange`, `compute`, `multi_step` or `memory`.
            Tests of a capability that the backend does not declare are skipped.
    """

    capability: ClassVar[str] = "backend"

    @pytest.fixture
    def backend(self) -> Backend:
        """Return a fresh backend."""
        self.missing_fixture("backend")

    @pytest.fixture
    def new_tensor(self) -> Callable[[], Any]:
        """Create a tensor without naming a device, as users do: `lambda: torch.zeros(3)`."""
        self.missing_fixture("new_tensor")

    @pytest.fixture
    def from_numpy(self, backend: Backend, request: pytest.FixtureRequest) -> Callable[[np.ndarray], Any]:
        """Create a tensor on the framework's default device from an array that no code changes."""
        if not isinstance(backend, Exchange):
            self.missing_fixture("from_numpy")
        cpu = Device("cpu")
        default = cpu if cpu in backend.devices() else request.getfixturevalue("device")
        return lambda array: backend.from_host(array, default)

    @pytest.fixture
    def to_numpy(self, backend: Backend) -> Callable[[Any], np.ndarray]:
        """Read the values of a tensor on any device."""
        if not isinstance(backend, Exchange):
            self.missing_fixture("to_numpy")
        return backend.to_host

    @pytest.fixture
    def model(self, backend: Backend) -> Callable[[], Any]:
        """Create a small trainable, deterministic model: one float32 input [4], one output [3], per sample."""
        return _standard_model(backend, activation="tanh") or self.missing_fixture("model")

    @pytest.fixture
    def float64_model(self, backend: Backend, model: Callable[[], Any]) -> Callable[[], Any]:
        """Create `model` in float64 if the framework has it: gradients are then compared to more digits."""
        return _standard_model(backend, activation="tanh", dtype="float64") or model

    @pytest.fixture
    def random_model(self, backend: Backend) -> Callable[[], Any]:
        """Create `model` with dropout."""
        return _standard_model(backend, activation="tanh", dropout=0.5) or _skip("no random_model was given")

    @pytest.fixture
    def buffered_model(self) -> Callable[[], Any]:
        """Create `model` with buffers that change in training: batch normalization."""
        _skip("no buffered_model was given")

    @pytest.fixture
    def dropout_free_model(self, backend: Backend, random_model: Callable[[], Any]) -> Callable[[], Any]:
        """Create `random_model` at a dropout rate of 0: with the same parameters, by the same names."""
        return _without_dropout(backend, random_model) or _skip("no dropout_free_model was given")

    @pytest.fixture
    def tied_model(self) -> Callable[[], Any]:
        """Create `model` with one parameter that is used in two places: a layer that is called twice."""
        _skip("no tied_model was given")

    @pytest.fixture
    def models_that_share(self) -> Callable[[], tuple[Any, Any]]:
        """Create two models like `model` that have one layer or array in common, if that ties them in the framework."""
        _skip("no models_that_share was given")

    @pytest.fixture
    def custom_loss(self) -> Callable[[Any, Any], Any]:
        """Compute the mean squared error, as users of the framework write a loss: a function of outputs and targets."""
        _skip("no custom_loss was given")

    @pytest.fixture
    def parameter_free_model(self) -> Callable[[], Any]:
        """Create a model without parameters whose output has the shape of its input: an activation."""
        _skip("no parameter_free_model was given")

    @pytest.fixture
    def mutating_model(self) -> Callable[[], Any]:
        """Create `model` so that it writes to its input: an in-place activation, for instance."""
        _skip("no mutating_model was given")

    @pytest.fixture
    def keyword_model(self, backend: Backend) -> Callable[[], Any]:
        """Create a model of two inputs, `minuend` and `subtrahend`, each float32 [4] per sample, without parameters.

        It returns `{"difference": minuend - subtrahend, "parts": {"first": minuend}}`. Needed if a backend
        `calls_by_keyword`.
        """
        declared = getattr(backend, "calls_by_keyword", False)
        _skip("no keyword_model was given" if declared else "calls_by_keyword is not declared")

    @pytest.fixture
    def time_first_model(self, backend: Backend) -> Callable[[], Any]:
        """Create a model without parameters of one input `x`, float32 [2, batch, 4]: its cumulative sum over axis 0.

        Needed if a backend `moves_batch_axis`.
        """
        declared = getattr(backend, "moves_batch_axis", False)
        _skip("no time_first_model was given" if declared else "moves_batch_axis is not declared")

    @pytest.fixture
    def custom_step(self, backend: Backend) -> Callable[..., Any]:
        """Return a training step as users of the framework write one, where a backend has `custom_steps`.

        It trains the model `node` on `batch["x"]` and `batch["t"]` by the mean squared error, with the optimizer of
        `node`, and returns `{"loss": loss}`.
        """
        declared = getattr(backend, "custom_steps", False)
        _skip("no custom_step was given" if declared else "custom_steps is not declared")

    @pytest.fixture
    def random_state(self) -> Callable[[], Any]:
        """Read the state of the framework's global random generator, as arrays; by default that of NumPy."""
        return lambda: np.random.get_state(legacy=False)

    # -- derived from the backend ----------------------------------------------------------------------------------

    @pytest.fixture
    def device(self, backend: Backend) -> Device:
        """Return the device of the tests: the backend's best."""
        return next(iter(backend.devices()), None) or _skip("no device")

    @pytest.fixture
    def second_device(self, backend: Backend, device: Device) -> Device:
        """Return another device; tests that need it are skipped if there is only one."""
        return next((other for other in backend.devices() if other != device), None) or _skip("one device only")

    @pytest.fixture
    def harness(
        self,
        backend: Backend,
        device: Device,
        from_numpy: Callable[[np.ndarray], Any],
        to_numpy: Callable[[Any], np.ndarray],
    ) -> Harness:
        """Return the backend on the device, with helpers to move tensors and to build and train programs."""
        return Harness(backend, device, from_numpy, to_numpy)

    @pytest.fixture(autouse=True)
    def skip_undeclared_capability(self, backend: Backend) -> None:
        """Skip tests of a capability that the backend does not declare."""
        if backend.capability(_CLASSES[self.capability]) is None:
            _skip(f"{self.capability} is not declared")

    def missing_fixture(self, name: str) -> NoReturn:
        """Fail because a needed fixture is not defined."""
        pytest.fail(f"the kit needs the fixture {name!r}. Hint: see anyaccel_devtools.testing.Subject", pytrace=False)


def _standard_model(backend: Backend, **settings: Any) -> Callable[[], Any] | None:
    models = backend.models() if isinstance(backend, Compute) else {}
    if STANDARD_MODEL not in models:
        return None
    cls: Callable[..., Any] = models[STANDARD_MODEL]
    return lambda: cls(**{"output_shape": (3,), "n_layers": 2, "hidden_dim": 5, **settings})


def _without_dropout(backend: Backend, random_model: Callable[[], Any]) -> Callable[[], Any] | None:
    cls: Any = backend.models().get(STANDARD_MODEL) if isinstance(backend, Compute) else None
    sample = random_model()
    if cls is None or type(sample) is not cls:
        return None
    return lambda: cls(**{**sample.get_config(), "dropout": 0.0})


def _skip(reason: str) -> NoReturn:
    pytest.skip(reason)
