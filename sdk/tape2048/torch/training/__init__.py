"""Training of a critic: model, data, validation, checkpoints, ranks."""
