"""The conformance kit over torch."""

from __future__ import annotations

import pytest

from anyaccel.testing import Subject, model_suite, suite
from anyaccel_torch.conformance import TorchSubject


class Torch(TorchSubject):
    """torch on the best device of this machine."""


class Standard(TorchSubject):
    """The same with SequentialMLP, which every framework has."""

    model = Subject.model
    random_model = Subject.random_model
    dropout_free_model = Subject.dropout_free_model


FURTHER = model_suite(Standard, "Standard")
globals().update(suite(Torch) | {name: pytest.mark.sampled(tests) for name, tests in FURTHER.items()})
