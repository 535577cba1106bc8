"""ComputeTests: every promise of a backend that computes."""

from __future__ import annotations

import pytest

from anyaccel.testing.missing_input_tests import PartialTests
from anyaccel.testing.model_tests import ModelTests
from anyaccel.testing.program_tests import ProgramTests
from anyaccel.testing.segment_tests import ClippingTests, SegmentTests
from anyaccel.testing.training_tests import TrainingTests


@pytest.mark.anyaccel_capability("compute")
class ComputeTests(ModelTests, ProgramTests, TrainingTests, SegmentTests, ClippingTests, PartialTests):
    """Every promise of `Compute` and of `Program`."""
