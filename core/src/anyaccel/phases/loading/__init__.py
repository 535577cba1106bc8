"""Loading: from what a user gave as data to chunks of rows on their devices. Stands on data and graph.

`input_data` (what was given, as rows or a source), `host_columns` (columns in host memory, as the plan loads them),
`epoch_batches` and `evaluation_rows` (samplers to row orders), `epoch_plan` (what each step of an epoch takes),
`loader` (the protocol `BatchLoader`, and rows that stay on their devices), `streaming` and `source_loader` (rows that
are sent in chunks), `loader_factory` and `residency` (which of these, decided from measured memory).
"""
