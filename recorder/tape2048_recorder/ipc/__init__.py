"""Communication between daemon and workers: messages, shared words, process set-up."""
