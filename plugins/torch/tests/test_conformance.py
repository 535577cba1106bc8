"""The conformance kit over torch."""

from __future__ import annotations

import os

import pytest
from sampling import sampled

from anyaccel_devtools.testing import Subject, model_suite, suite
from anyaccel_devtools.testing.replica_tests import run_scenarios
from anyaccel_torch.conformance import TorchSubject


class Torch(TorchSubject):
    """torch on the best device of this machine."""

    @pytest.fixture
    def replica_folder(self, backend, harness, tmp_path_factory):
        if not os.environ.get("ANYACCEL_TEST_FULL"):
            pytest.skip("ANYACCEL_TEST_FULL is not set; test_sharing.py trains in two processes anyway")
        return run_scenarios(backend, harness, tmp_path_factory)


class Standard(TorchSubject):
    """The same with SequentialMLP, which every framework has."""

    replica_folder = Torch.replica_folder
    model = Subject.model
    random_model = Subject.random_model
    dropout_free_model = Subject.dropout_free_model


FURTHER = model_suite(Standard, "Standard")
# In the check each test of the kit runs over one framework of three; the session `kits` runs all.
globals().update(sampled(suite(Torch), 3, 1) | sampled(FURTHER, 24))
