"""Models of Flax and Equinox as their guides write them: an encoder, convolutions, recurrent networks."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

WIDTH, CLASSES = 8, 3


# -- Linen -------------------------------------------------------------------------------------------------------------


class LinenEncoder(nn.Module):
    """Tokens and a mask by name, a dict of outputs."""

    @nn.compact
    def __call__(self, input_ids: Any, attention_mask: Any, train: bool = False) -> Any:
        x = nn.Embed(20, WIDTH)(input_ids)
        mask = nn.make_attention_mask(attention_mask, attention_mask)
        x = nn.LayerNorm()(x + nn.MultiHeadDotProductAttention(2)(x, mask=mask))
        x = nn.LayerNorm()(x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(2 * WIDTH)(x))))
        return {"hidden": x, "logits": nn.Dense(CLASSES)(x[:, 0])}


class LinenConvolutions(nn.Module):
    """Residual blocks with batch normalization."""

    @nn.compact
    def __call__(self, images: Any, train: bool = False) -> Any:
        x = nn.Conv(WIDTH, (3, 3))(images)
        for _ in range(2):
            inner = nn.BatchNorm(use_running_average=not train)(x)
            x = x + nn.Conv(WIDTH, (3, 3))(nn.relu(inner))
        return nn.Dense(CLASSES)(x.mean((1, 2)))


class LinenRecurrent(nn.Module):
    @nn.compact
    def __call__(self, series: Any) -> Any:
        return nn.Dense(CLASSES)(nn.RNN(nn.OptimizedLSTMCell(WIDTH))(series)[:, -1])


class LinenMixer(nn.Module):
    @nn.compact
    def __call__(self, series: Any) -> Any:
        x = nn.Dense(WIDTH)(series)
        for _ in range(2):
            x = x + jnp.swapaxes(nn.Dense(x.shape[1])(nn.gelu(jnp.swapaxes(nn.LayerNorm()(x), 1, 2))), 1, 2)
            x = x + nn.Dense(WIDTH)(nn.gelu(nn.LayerNorm()(x)))
        return nn.Dense(CLASSES)(x.mean(1))


# -- NNX ---------------------------------------------------------------------------------------------------------------


class NnxConvolutions(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first, self.norm = nnx.Conv(3, WIDTH, (3, 3), rngs=rngs), nnx.BatchNorm(WIDTH, rngs=rngs)
        self.second = nnx.Conv(WIDTH, WIDTH, (3, 3), strides=2, rngs=rngs)
        self.head = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, images: Any) -> Any:
        x = nnx.relu(self.norm(self.first(images)))
        return self.head(nnx.max_pool(self.second(x), (2, 2), (2, 2)).mean((1, 2)))


class NnxEncoder(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.tokens = nnx.Embed(20, WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, WIDTH, decode=False, rngs=rngs)
        self.norm, self.head = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, input_ids: Any, attention_mask: Any) -> Any:
        mask = nnx.make_attention_mask(attention_mask, attention_mask)
        x = self.tokens(input_ids)
        x = self.norm(x + self.attention(x, mask=mask))
        return {"hidden": x, "logits": self.head(x[:, 0])}


# -- Equinox: of single samples ----------------------------------------------------------------------------------------


class EquinoxRecurrent(eqx.Module):
    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear

    def __init__(self, key: Any) -> None:
        first, second = jax.random.split(key)
        self.cell, self.head = eqx.nn.GRUCell(4, WIDTH, key=first), eqx.nn.Linear(WIDTH, CLASSES, key=second)

    def __call__(self, series: Any) -> Any:
        last, _ = jax.lax.scan(lambda state, x: (self.cell(x, state), None), jnp.zeros(WIDTH, series.dtype), series)
        return self.head(last)


class EquinoxConvolutions(eqx.Module):
    layers: list[Any]

    def __init__(self, key: Any) -> None:
        keys = jax.random.split(key, 3)
        self.layers = [
            eqx.nn.Conv2d(3, WIDTH, 3, key=keys[0]),
            jax.nn.relu,
            eqx.nn.GroupNorm(2, WIDTH),
            eqx.nn.Conv2d(WIDTH, WIDTH, 3, stride=2, key=keys[1]),
            eqx.nn.AdaptiveAvgPool2d(1),
            jnp.ravel,
            eqx.nn.Linear(WIDTH, CLASSES, key=keys[2]),
        ]

    def __call__(self, images: Any) -> Any:
        for layer in self.layers:
            images = layer(images)
        return images


class EquinoxEncoder(eqx.Module):
    tokens: eqx.nn.Embedding
    attention: eqx.nn.MultiheadAttention
    head: eqx.nn.MLP

    def __init__(self, key: Any) -> None:
        keys = jax.random.split(key, 3)
        self.tokens = eqx.nn.Embedding(20, WIDTH, key=keys[0])
        self.attention = eqx.nn.MultiheadAttention(2, WIDTH, key=keys[1])
        self.head = eqx.nn.MLP(WIDTH, CLASSES, 2 * WIDTH, 1, key=keys[2])

    def __call__(self, input_ids: Any, attention_mask: Any) -> Any:
        x = jax.vmap(self.tokens)(input_ids)
        mask = (attention_mask[:, None] * attention_mask[None, :]).astype(bool)
        return {"logits": self.head((x + self.attention(x, x, x, mask=mask)).mean(0))}
