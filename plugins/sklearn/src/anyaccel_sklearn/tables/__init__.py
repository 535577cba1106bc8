"""Tables with text, categories, dates and gaps as one matrix of numbers, by transformers of scikit-learn."""
