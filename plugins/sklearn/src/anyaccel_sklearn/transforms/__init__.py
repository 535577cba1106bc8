"""Transforms of columns in scikit-learn's style: fitted on some rows, applied to all rows, and undone again.

Works on Arrow tables and depends on core's readers; `FeatureSet` offers it as `fit_transform`, `transform_like`,
`undo_transform` and `inverse`. scikit-learn itself is never imported.
"""
