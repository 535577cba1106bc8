"""Metrics: measures by scikit-learn's names, custom functions, and metric objects of frameworks.

Stands on the kernel, with `arguments` and `user_level`.
"""

from anyaccel.metrics.metric import BoundMetric as BoundMetric
from anyaccel.metrics.metric import Metric as Metric
from anyaccel.metrics.metric import can_measure as can_measure
from anyaccel.metrics.named import METRICS as METRICS
from anyaccel.metrics.named import SYNONYMS as SYNONYMS
from anyaccel.metrics.named import NamedMetric as NamedMetric
from anyaccel.metrics.named import is_higher_better as is_higher_better
from anyaccel.metrics.named import metric_names as metric_names
