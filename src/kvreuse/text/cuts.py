"""Cuts: how a text falls into words before byte-level BPE merges anything.

Each way has a name, the file's ``tokenizer.ggml.pre``; the cuts here are those of the models' own
``tokenizer.json``.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers


@dataclass(frozen=True)
class Cut:
    """How the models of one ``pre`` name cut words, and what else that name implies.

    ``patterns`` cut words by regular expressions, each what the one before left; without any
    GPT-2's does, after each digit became a word of its own where ``digits`` says so.
    ``ignore_merges`` takes a word that is a token as that token; ``nfc`` composes characters first;
    ``add_bos`` holds where the file does not say.
    """

    patterns: tuple[str, ...] = ()
    digits: bool = False
    ignore_merges: bool = False
    nfc: bool = False
    add_bos: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The pre-tokenizer, which ends in the byte alphabet."""
        steps: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns
        ]
        if self.digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        steps.append(
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not self.patterns),
        )
        return pre_tokenizers.Sequence(steps)


_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _gpt4(digits: str) -> str:
    """Words as Llama 3 and Qwen 2 cut them; they differ in how many digits make one."""
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|"
        + _SPACES
    )


def _by_case(digits: str, suffix: str = "") -> str:
    """Words as Mistral NeMo cuts them: where a lower-case letter is followed by an upper-case one.

    Marks and letters without case count as both.
    """
    start, upper, lower = r"[^\r\n\p{L}\p{N}]?", r"\p{Lu}\p{Lt}", r"\p{Ll}"
    both = r"\p{Lm}\p{Lo}\p{M}"
    return (
        f"{start}[{upper}{both}]*[{lower}{both}]+{suffix}|"
        f"{start}[{upper}{both}]+[{lower}{both}]*{suffix}|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
        + _SPACES
    )


_GPT2 = Cut()
_DIGITS = Cut(digits=True)
_LLAMA3 = Cut(patterns=(_gpt4(r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True)
_QWEN2 = Cut(patterns=(_gpt4(r"\p{N}"),), nfc=True)
_R1_QWEN = Cut(patterns=(_gpt4(r"\p{N}"),))
_TEKKEN = Cut(patterns=(_by_case(r"\p{N}"),), ignore_merges=True, add_bos=True)
_DEEPSEEK_CODER = Cut(
    patterns=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+"),
    digits=True,
)
CUTS = {
    **dict.fromkeys(("gpt-2", "gpt2", "mpt", "olmo", "jais"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), _LLAMA3),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _R1_QWEN,
    "deepseek-coder": _DEEPSEEK_CODER,
    "tekken": _TEKKEN,
}
