"""Mistakes of a first day with anyaccel, by habits of PyTorch, Keras and scikit-learn."""
