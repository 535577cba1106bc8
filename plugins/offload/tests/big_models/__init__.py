"""Tests of anyaccel_offload.torch."""
