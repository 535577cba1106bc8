"""Metrics: measures by scikit-learn's names, functions of one's own, and metric objects of frameworks."""

from anyaccel.phases.metrics.metric import Metric as Metric
from anyaccel.phases.metrics.metric_calls import can_measure as can_measure
from anyaccel.phases.metrics.named import HIGHER_IS_BETTER as HIGHER_IS_BETTER
from anyaccel.phases.metrics.named import METRICS as METRICS
from anyaccel.phases.metrics.named import SYNONYMS as SYNONYMS
from anyaccel.phases.metrics.named import is_higher_better as is_higher_better
