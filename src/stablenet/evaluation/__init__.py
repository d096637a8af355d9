"""What is computed after training: predictions, metrics, selection."""
