"""Critics without PyTorch: settings, examination, metrics, baselines, files of scores."""
