"""transformers models in `anyaccel.fit`: labels, padding, which labels count in the loss, class names, saving."""

from anyaccel_transformers.pretrained import PretrainedLoss

__all__ = ["PretrainedLoss"]
