"""Sources: data that gives batches, or rows one by one, and is never in memory as a whole.

`IterableSource` wraps loaders, data sets and generators of any framework, `MapSource` map-style data sets,
`ParquetStream` Parquet files; `as_source` chooses one for what a phase was given. Stands on `anyaccel.data.feature_set`
(for the example of a source), `anyaccel.data.readers` and, to bring tensors to the host, `anyaccel.registry`.
"""
