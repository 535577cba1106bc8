"""Tests of anyaccel_torch.big_models."""
