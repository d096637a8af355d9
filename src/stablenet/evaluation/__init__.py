"""What is computed after training, from a run folder: predictions, selection of an epoch, figures on the target.

In reading order: `predict` (from a model and pixels to a table of predictions) and `evaluate` (which epoch counts, a
finished run on the target, and failures that a mean accuracy hides).
"""
