"""ComputeTests: the contract of `Compute` and `Program`."""

from __future__ import annotations

from anyaccel_devtools.testing.batch_axis_tests import BatchAxisTests
from anyaccel_devtools.testing.custom_step_tests import CustomStepTests
from anyaccel_devtools.testing.device_replica_tests import DeviceReplicaTests
from anyaccel_devtools.testing.keyword_tests import KeywordTests
from anyaccel_devtools.testing.missing_input_tests import MissingInputTests
from anyaccel_devtools.testing.model_tests import ModelTests
from anyaccel_devtools.testing.offload_tests import OffloadTests
from anyaccel_devtools.testing.parameter_group_tests import ParameterGroupTests
from anyaccel_devtools.testing.precision_tests import PrecisionTests
from anyaccel_devtools.testing.profile_tests import ProfileTests
from anyaccel_devtools.testing.program_tests import ProgramTests
from anyaccel_devtools.testing.replica_tests import ReplicaTests
from anyaccel_devtools.testing.segment_tests import ClippingTests, SegmentTests
from anyaccel_devtools.testing.step_cost_tests import StepCostTests
from anyaccel_devtools.testing.training_tests import TrainingTests
from anyaccel_devtools.testing.weight_file_tests import WeightFileTests
from anyaccel_devtools.testing.weighted_loss_tests import WeightedLossTests


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
