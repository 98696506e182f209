"""How good a model's answers are, measured: perplexity, divergence, and calibration of codecs."""
