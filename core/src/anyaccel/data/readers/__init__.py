"""Readers: convert user data (arrays, data frames, Arrow, Parquet files) to Arrow tables whose columns have roles.

Each `table_from_*` function returns the table that a constructor of `FeatureSet` holds. Stands on `anyaccel.data.roles`
and `anyaccel.data.arrow_columns`; pandas, Polars and others are used through the interface of the given objects, never
imported.
"""
