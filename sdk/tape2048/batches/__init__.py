"""Random batches of a corpus: order, gather, pools, buffers."""
