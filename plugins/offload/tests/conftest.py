"""Settings of the frameworks, read when they are imported."""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")
# On a GPU JAX multiplies float32 in TF32 unless it is told not to: three digits, and tests compare more.
os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "float32")
