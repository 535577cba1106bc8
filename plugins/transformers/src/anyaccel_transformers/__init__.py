"""Models of transformers in `anyaccel.fit`: labels, padding, what counts in the loss, names of classes, saving."""

from anyaccel_transformers.pretrained import PretrainedLoss

__all__ = ["PretrainedLoss"]
