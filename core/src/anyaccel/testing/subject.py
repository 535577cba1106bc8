"""Subject: the handful of fixtures by which an author tells the kit about a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
import pytest

from anyaccel.backend import CAPABILITIES, Backend, Compute, Exchange
from anyaccel.device import Device
from anyaccel.testing.harness import Bench

CAPABILITY_MARK = "anyaccel_capability"
STANDARD_MODEL = "SequentialMLP"


class Subject:
    """What the kit knows of a backend. Derive from it, fill in what does not follow from the backend, and derive one
    test class from it and each class of tests; or let `suite` do that:

        class Torch(Subject):
            @pytest.fixture
            def backend(self):
                return TorchBackend()

            @pytest.fixture
            def new_tensor(self):
                return lambda: torch.zeros(3)

        globals().update(suite(Torch))

    `backend` and `new_tensor` are needed always, `tensor` and `read` where the backend is no `Exchange`, `model` where
    it computes and does not offer SequentialMLP in `models()`. The others let the kit look closer.
    """

    @pytest.fixture
    def backend(self) -> Backend:
        """A fresh backend."""
        _fill_in("backend")

    @pytest.fixture
    def new_tensor(self) -> Callable[[], Any]:
        """Makes a tensor as users do who name no device: `lambda: torch.zeros(3)`."""
        _fill_in("new_tensor")

    @pytest.fixture
    def tensor(self, backend: Backend) -> Callable[[np.ndarray], Any]:
        """Makes a tensor on the framework's default device from an array that nobody changes."""
        if not isinstance(backend, Exchange):
            _fill_in("tensor")
        exchange, where = backend, _default(backend)
        return lambda array: exchange.from_host(array, where)

    @pytest.fixture
    def read(self, backend: Backend) -> Callable[[Any], np.ndarray]:
        """The values of a tensor that may be on any device."""
        if not isinstance(backend, Exchange):
            _fill_in("read")
        return backend.to_host

    @pytest.fixture
    def model(self, backend: Backend) -> Callable[[], Any]:
        """Makes a small trainable model that is not random: one float32 input [4], one output [3], per sample."""
        return _standard(backend, activation="tanh") or _fill_in("model")

    @pytest.fixture
    def exact_model(self, backend: Backend, model: Callable[[], Any]) -> Callable[[], Any]:
        """As `model`, in float64 where the framework has it: gradients are then compared to more digits."""
        return _standard(backend, activation="tanh", dtype="float64") or model

    @pytest.fixture
    def random_model(self, backend: Backend) -> Callable[[], Any]:
        """As `model`, with dropout."""
        return _standard(backend, activation="tanh", dropout=0.5) or _skip("no random_model was given")

    @pytest.fixture
    def buffered_model(self) -> Callable[[], Any]:
        """As `model`, with values that change while training but not by gradients: batch normalisation."""
        _skip("no buffered_model was given")

    @pytest.fixture
    def writing_model(self) -> Callable[[], Any]:
        """As `model`, and writes to its input: an activation in place, say."""
        _skip("no writing_model was given")

    # -- derived ---------------------------------------------------------------------------------------------------

    @pytest.fixture
    def device(self, backend: Backend) -> Device:
        """Where the tests are done: the backend's best device."""
        return next(iter(backend.devices()), None) or _skip("no device")

    @pytest.fixture
    def second(self, backend: Backend, device: Device) -> Device:
        """Another device."""
        return next((other for other in backend.devices() if other != device), None) or _skip("one device only")

    @pytest.fixture
    def bench(
        self,
        backend: Backend,
        device: Device,
        tensor: Callable[[np.ndarray], Any],
        read: Callable[[Any], np.ndarray],
    ) -> Bench:
        """The backend with everything at hand."""
        return Bench(backend, device, tensor, read)

    @pytest.fixture(autouse=True)
    def only_what_is_declared(self, request: pytest.FixtureRequest, backend: Backend) -> Iterator[None]:
        """Skip tests of a capability that the backend does not declare."""
        mark = request.node.get_closest_marker(CAPABILITY_MARK)
        name = mark.args[0] if mark is not None else "backend"
        if not isinstance(backend, {**CAPABILITIES, "backend": Backend, "stepping": Compute}[name]):
            _skip(f"{name} is not declared")
        yield


def _default(backend: Backend) -> Device:
    """The CPU where it is served, as frameworks make tensors there unless they are told otherwise."""
    there = list(backend.devices())
    return Device("cpu") if Device("cpu") in there else there[0]


def _standard(backend: Backend, **settings: Any) -> Callable[[], Any] | None:
    offered = backend.models() if isinstance(backend, Compute) else {}
    if STANDARD_MODEL not in offered:
        return None
    made: Callable[..., Any] = offered[STANDARD_MODEL]
    return lambda: made(**{"output_shape": (3,), "n_layers": 2, "hidden_dim": 5, **settings})


def _fill_in(name: str) -> NoReturn:
    pytest.fail(f"the kit needs the fixture {name!r}: see anyaccel.testing.Subject", pytrace=False)


def _skip(reason: str) -> NoReturn:
    pytest.skip(reason)
