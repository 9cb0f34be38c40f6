"""Figures of a run: curves, confusion matrix, ROC curve, as SVG or PNG files."""
