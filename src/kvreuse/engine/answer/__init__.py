"""From logits to an answer: sampling, text, log-probabilities and stop conditions."""
