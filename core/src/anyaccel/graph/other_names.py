"""What a graph has in place of the methods of modules and models of other libraries."""

OTHER_NAMES = {
    "fit train train_step train_on_batch train_model": "run a phase over it: graph.run("
    "TrainPhase('train', data='train', losses=[AppliedLoss('mse', on='NODE')]))",
    "predict forward call apply": "evaluate it: graph.run(EvalPhase('predict', data='all')).prediction('NODE')",
    "eval evaluate test score": "evaluate it: graph.run(EvalPhase('test', data='all', metrics=['mse'])).metrics",
    "run_phase execute start": "use run(phase)",
    "compile": "give the optimizer to ModelGraph(nodes, 'adam') and losses to TrainPhase(..., losses=[...])",
    "to cuda cpu gpu device place move": "say where to a phase: TrainPhase(..., accelerator='cpu')",
    "parameters named_parameters weights": "they are in the models: graph['NODE'].model",
    "state_dict get_weights": "use state()",
    "load_state_dict set_weights": "use load_state(state)",
    "save_model": "use save(folder)",
    "load_model": "use ModelGraph.load(folder)",
    "add add_module append": "use add_node(ModelNode(...))",
    "layers modules children": "use graph.nodes, or graph['NODE']",
    "plot draw show": "use visualize()",
    "requires_grad_ trainable": "use freeze('NODE') and unfreeze('NODE')",
    "zero_grad backward step loss criterion": "a TrainPhase does this: TrainPhase(..., losses=[AppliedLoss(...)])",
}
