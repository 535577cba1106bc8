"""What a feature set has in place of the methods of data frames, tensors and data loaders."""

OTHER_NAMES = {
    "train_test_split random_split split_train_test": "use split_random({'train': 0.8, 'test': 0.2})",
    "shuffle batch dataloader loader repeat prefetch": "a phase draws batches: TrainPhase(..., sampler=32)",
    "map transform scale normalize standardize": "use fit_transform(StandardScaler(), 'COLUMN', fit_on='train')",
    "x X data": "use array('COLUMN')",
    "y Y labels": "use array('COLUMN')",
    "iloc loc sample rows_at": "use take([0, 1, 2])",
    "head describe info values": "use to_pandas()",
    "shape": "use len(...) for rows, and array('COLUMN').shape",
    "query where": "use filter({'COLUMN': value})",
    "to cuda": "say where to a phase: TrainPhase(..., accelerator='cpu')",
    "ref refs": "use reference()",
    "astype": "use cast({'COLUMN': 'float32'})",
    "to_numpy numpy": "use array('COLUMN')",
    "df to_df": "use to_pandas()",
}
