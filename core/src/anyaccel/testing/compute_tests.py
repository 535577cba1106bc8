"""ComputeTests: the contract of `Compute` and `Program`."""

from __future__ import annotations

from anyaccel.testing.keyword_tests import KeywordTests
from anyaccel.testing.missing_input_tests import MissingInputTests
from anyaccel.testing.model_tests import ModelTests
from anyaccel.testing.program_tests import ProgramTests
from anyaccel.testing.segment_tests import ClippingTests, SegmentTests
from anyaccel.testing.training_tests import TrainingTests


class ComputeTests(
    ModelTests, ProgramTests, TrainingTests, SegmentTests, ClippingTests, MissingInputTests, KeywordTests
):
    """Everything that `Compute` and `Program` promise."""

    capability = "compute"
