"""Transforms in the scikit-learn style, fitted on some rows and undone again."""
