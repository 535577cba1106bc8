"""ComputeTests: the contract of `Compute` and `Program`."""

from __future__ import annotations

from anyaccel.testing.batch_axis_tests import BatchAxisTests
from anyaccel.testing.custom_step_tests import CustomStepTests
from anyaccel.testing.device_replica_tests import DeviceReplicaTests
from anyaccel.testing.keyword_tests import KeywordTests
from anyaccel.testing.missing_input_tests import MissingInputTests
from anyaccel.testing.model_tests import ModelTests
from anyaccel.testing.offload_tests import OffloadTests
from anyaccel.testing.parameter_group_tests import ParameterGroupTests
from anyaccel.testing.precision_tests import PrecisionTests
from anyaccel.testing.profile_tests import ProfileTests
from anyaccel.testing.program_tests import ProgramTests
from anyaccel.testing.replica_tests import ReplicaTests
from anyaccel.testing.segment_tests import ClippingTests, SegmentTests
from anyaccel.testing.step_cost_tests import StepCostTests
from anyaccel.testing.training_tests import TrainingTests
from anyaccel.testing.weight_file_tests import WeightFileTests
from anyaccel.testing.weighted_loss_tests import WeightedLossTests


class ComputeTests(
    ModelTests,
    ProgramTests,
    TrainingTests,
    SegmentTests,
    ClippingTests,
    MissingInputTests,
    KeywordTests,
    BatchAxisTests,
    WeightedLossTests,
    ParameterGroupTests,
    CustomStepTests,
    PrecisionTests,
    ProfileTests,
    StepCostTests,
    WeightFileTests,
    DeviceReplicaTests,
    ReplicaTests,
    OffloadTests,
):
    """Everything that `Compute` and `Program` promise."""

    capability = "compute"
