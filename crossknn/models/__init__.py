"""Model files and what scorers and encoders share: hub lookup, length-bucketed batching, attention kernels."""
