"""What is computed after training, from a run folder: predictions, selection of an epoch, figures on the target.

In reading order: `selection` (which epoch counts), `predict` (from a model and pixels to a table of predictions) and
`evaluate` (a finished run on the target, and what a mean accuracy hides).
"""
