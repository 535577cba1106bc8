"""Which rows go into which split: at random by ratios, stratified, or in groups that stay together.

Works on row numbers and stands on `anyaccel.data.rows`; `FeatureSet` and its views offer it as `split_random` and
`split_by_condition`.
"""
