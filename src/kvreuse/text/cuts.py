"""Cuts: how a text is cut into words, before byte-level BPE merges the bytes of each word.

``CUTS`` has them by the names that GGUF files give (``tokenizer.ggml.pre``); they are taken from
the models' own ``tokenizer.json``.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers


@dataclass(frozen=True)
class Cut:
    """How the models of one family cut words, and what else their tokenizers have in common.

    ``patterns`` are regular expressions, each of which cuts the pieces that the one before left.
    Without any, words are cut by GPT-2's pattern. ``digits``: each digit becomes a word of its own.
    ``ignore_merges``: a word that is a token becomes that token, whatever the merges say. ``nfc``:
    characters are composed first. ``add_bos``: prompts get a BOS token if the file does not say.
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
    """Words of Llama 3 and Qwen 2, which differ in ``digits``, the pattern of numbers."""
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|"
        + _SPACES
    )


def _by_case(digits: str, suffix: str = "") -> str:
    """Words of Mistral NeMo: cut between a lower-case letter and an upper-case one behind it.

    Marks and letters without case count as both cases.
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
