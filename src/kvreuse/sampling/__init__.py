"""From a row of logits to a token. A row's sample depends on that row and its request alone."""

from kvreuse.sampling.logprobs import TokenLogprob, top_logprobs
from kvreuse.sampling.sampler import Sampler, make_generator

__all__ = ["Sampler", "TokenLogprob", "make_generator", "top_logprobs"]
