"""Tests of Keras models on torch, and the models that they share."""
