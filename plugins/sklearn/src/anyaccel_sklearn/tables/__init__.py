"""Tables with text, categories, dates and gaps as one matrix of numbers, with scikit-learn's transformers."""
