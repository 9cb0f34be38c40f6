"""Training: a model, its loss and its optimizer, compiled to graphs and held in one session."""
