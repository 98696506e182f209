"""Test vectors for the tokenizers, from implementations that share no code with them.

Writes ``tests/text/vectors/*.json``: the token ids that llama.cpp gives the texts of
``texts.json``, for the real model files that are there and for small vocabularies trained on those
texts. Where a file's tokenizer is SentencePiece, the package ``sentencepiece`` must agree.

Needs an environment of its own, and nothing of kvreuse::

    python -m venv .bench/tokenizers
    .bench/tokenizers/bin/pip install xllamacpp sentencepiece protobuf gguf tokenizers
    .bench/tokenizers/bin/python bench/tokenizer_vectors.py

Where llama.cpp is known to deviate from the models' own tokenizers the texts keep away: it takes
the text ``</s>`` for a control token in every vocabulary, and does not take a literal U+2581 for a
space before it looks for user-defined tokens. It composes no characters, so for Qwen the texts are
brought to NFC, as Qwen's own tokenizer does. Its expression for tekken does not know marks: there
texts with marks have no ids.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import tempfile
import unicodedata
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import sentencepiece  # type: ignore[import-not-found]
import tokenizers
import xllamacpp  # type: ignore[import-not-found]
from sentencepiece import sentencepiece_model_pb2 as model_pb2

FOLDER = Path(__file__).parents[1] / "tests" / "text" / "vectors"
FOLDERS = [*os.environ.get("KVREUSE_MODELS", "").split(os.pathsep), "~/.cache/kvreuse/models"]
# Vectors -> the files that have this tokenizer; the first that is there answers for all.
FILES = {
    "smollm2": ["SmolLM2-135M-Instruct.Q4_1.gguf"],
    "gemma3": ["gemma-3-270m-q4_k_m.gguf"],
    "qwen2.5": [
        "qwen2.5-coder-0.5b-instruct-q4.gguf",
        "qwen2.5-coder-1.5b-instruct-q4_k.gguf",
    ],
}
PRE = ("gpt-2", "smollm", "llama-bpe", "qwen2", "deepseek-r1-qwen", "deepseek-coder", "tekken")
COMPOSED = ("qwen2",)
WITHOUT_MARKS = ("tekken",)
CONTROL, USER_DEFINED = ["<|im_start|>", "<|im_end|>"], ["<tool>"]
BPE_TOKENS, PIECES = 640, 1000


class LlamaCpp:
    """llama.cpp with a model file, asked over its HTTP server."""

    def __init__(self, path: Path) -> None:
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx, params.n_parallel, params.n_gpu_layers, params.port = 256, 1, 0, 0
        params.warmup = params.use_jinja = False
        self._server = xllamacpp.Server(params)

    def encode(self, text: str, *, special: bool = True, prompt: bool = False) -> list[int]:
        """Token ids; ``special`` parses control tokens, ``prompt`` adds BOS and EOS."""
        body = {"content": text, "parse_special": special, "add_special": prompt}
        request = urllib.request.Request(
            f"{self._server.listening_address}/tokenize",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as reply:
            ids: list[int] = json.load(reply)["tokens"]
        return ids


def vectors(
    model: LlamaCpp, texts: Mapping[str, list[str]], *, nfc: bool = False
) -> dict[str, Any]:
    """The ids of all texts: those with control tokens read as such, and as text."""
    if nfc:
        texts = {
            name: [unicodedata.normalize("NFC", t) for t in group] for name, group in texts.items()
        }
    return {
        "prompt": model.encode(texts["plain"][0], prompt=True),
        "plain": [model.encode(text) for text in texts["plain"]],
        "special": [model.encode(text) for text in texts["special"]],
        "as_text": [model.encode(text, special=False) for text in texts["special"]],
    }


def check_sentencepiece(model: bytes, groups: Sequence[tuple[list[str], list[list[int]]]]) -> None:
    """Stop where ``sentencepiece`` has other ids than llama.cpp; it never parses control tokens."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    for texts, every in groups:
        for text, ids in zip(texts, every, strict=True):
            if processor.encode(text) != ids:
                raise SystemExit(f"{text!r}: {processor.encode(text)} and {ids}")


def sentencepiece_model(metadata: Mapping[str, Any]) -> bytes:
    """The SentencePiece model that the metadata of a GGUF file describes."""
    proto = model_pb2.ModelProto()
    keys = (metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores", "token_type"))
    unknown = metadata["tokenizer.ggml.unknown_token_id"]
    for index, (token, score, kind) in enumerate(zip(*keys, strict=True)):
        piece = token.replace(" ", "\u2581")
        proto.pieces.add(piece=piece, score=score, type=2 if index == unknown else kind)
    spec = proto.trainer_spec
    spec.model_type, spec.byte_fallback, spec.unk_id = spec.BPE, True, unknown
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = metadata["tokenizer.ggml.add_space_prefix"]
    proto.normalizer_spec.remove_extra_whitespaces = False
    serialized: bytes = proto.SerializeToString()
    return serialized


def train_sentencepiece(texts: Sequence[str]) -> dict[str, Any]:
    """The keys of a small vocabulary as Llama 2's: a dummy prefix, scores, and all bytes."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        model_type="bpe",
        vocab_size=PIECES,
        character_coverage=0.98,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        control_symbols=CONTROL,
        user_defined_symbols=USER_DEFINED,
        num_threads=1,
        minloglevel=2,
    )
    pieces = model_pb2.ModelProto.FromString(model.getvalue()).pieces
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [piece.piece for piece in pieces],
        "tokenizer.ggml.scores": [piece.score for piece in pieces],
        "tokenizer.ggml.token_type": [piece.type for piece in pieces],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def train_bpe(texts: Sequence[str]) -> dict[str, Any]:
    """The keys of a small byte-level vocabulary whose merges cross words, so that cuts show."""
    pipeline = tokenizers.Tokenizer(tokenizers.models.BPE())
    pipeline.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=BPE_TOKENS,
        special_tokens=[*CONTROL, *USER_DEFINED],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=12,
        show_progress=False,
    )
    pipeline.train_from_iterator(texts, trainer)
    model = json.loads(pipeline.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(CONTROL) + [4] + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }


def write_model(path: Path, keys: Mapping[str, Any]) -> Path:
    """The smallest model that llama.cpp loads, with this tokenizer."""
    writer = gguf.GGUFWriter(path, "llama")
    for name in ("block_count", "head_count", "head_count_kv"):
        getattr(writer, f"add_{name}")(1)
    for name in ("context_length", "embedding_length", "feed_forward_length"):
        getattr(writer, f"add_{name}")(256 if name == "context_length" else 32)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in keys.items():
        kind = {bool: "bool", int: "uint32", str: "string", list: "array"}[type(value)]
        getattr(writer, f"add_{kind}")(key, value)
    rows = len(keys["tokenizer.ggml.tokens"])
    layer = [f"blk.0.{name}" for name in ("attn_norm", "ffn_norm")]
    square = [f"blk.0.attn_{name}" for name in ("q", "k", "v", "output")]
    square += [f"blk.0.ffn_{name}" for name in ("gate", "up", "down")]
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (rows, 32), "output_norm": (32,)}
    shapes |= dict.fromkeys(layer, (32,)) | dict.fromkeys(square, (32, 32))
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def metadata_of(path: Path) -> dict[str, Any]:
    """The keys of a file that describe a SentencePiece tokenizer."""
    fields = gguf.GGUFReader(path).fields
    return {key: fields[key].contents() for key in fields if key.startswith("tokenizer.ggml.")}


def write(name: str, content: Mapping[str, Any]) -> None:
    """A JSON file."""
    versions = [
        f"{package} {importlib.metadata.version(package)}"
        for package in ("xllamacpp", "sentencepiece")
    ]
    text = lines({"made_with": versions, **content})
    (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def lines(value: Any, indent: str = "") -> str:
    """JSON with a line for each list of numbers or short texts."""
    deeper = indent + " "
    if isinstance(value, dict):
        items = [f"{deeper}{json.dumps(key)}: {lines(v, deeper)}" for key, v in value.items()]
    elif isinstance(value, list) and any(isinstance(item, list) for item in value):
        items = [deeper + lines(item, deeper) for item in value]
    else:
        return json.dumps(value, separators=(",", ":"))
    start, end = "{}" if isinstance(value, dict) else "[]"
    return start + "\n" + ",\n".join(items) + f"\n{indent}{end}"


def real_files(texts: Mapping[str, list[str]]) -> None:
    """The vectors of the model files that are there."""
    for name, files in FILES.items():
        paths = (Path(folder).expanduser() / file for file in files for folder in FOLDERS if folder)
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            print(f"{name}: no file, left as it is")
            continue
        found = vectors(LlamaCpp(path), texts, nfc=name == "qwen2.5")
        if name == "gemma3":
            groups = [(texts["plain"], found["plain"]), (texts["special"], found["as_text"])]
            check_sentencepiece(sentencepiece_model(metadata_of(path)), groups)
        write(name, {"files": files, **found})


def has_marks(text: str) -> bool:
    """Whether a character of the text is a mark, such as an accent by itself."""
    return any(unicodedata.category(character).startswith("M") for character in text)


def small_vocabularies(texts: Mapping[str, list[str]], folder: Path) -> None:
    """Vectors of vocabularies that come with them, for what no real file here has."""
    keys, by_pre = train_bpe(texts["plain"]), {}
    for pre in PRE:
        path = write_model(folder / f"{pre}.gguf", {**keys, "tokenizer.ggml.pre": pre})
        by_pre[pre] = vectors(LlamaCpp(path), texts, nfc=pre in COMPOSED)["plain"]
        if pre in WITHOUT_MARKS:
            pairs = zip(texts["plain"], by_pre[pre], strict=True)
            by_pre[pre] = [None if has_marks(text) else ids for text, ids in pairs]
    write("bpe", {"keys": keys, "by_pre": by_pre})
    keys, by_prefix = train_sentencepiece(texts["plain"]), {}
    for prefix in (True, False):
        wanted = {**keys, "tokenizer.ggml.add_space_prefix": prefix}
        path = write_model(folder / f"{prefix}.gguf", wanted)
        found = by_prefix[str(prefix).lower()] = vectors(LlamaCpp(path), texts)
        check_sentencepiece(sentencepiece_model(wanted), [(texts["plain"], found["plain"])])
    write("sentencepiece", {"keys": keys, "by_space_prefix": by_prefix})


def main() -> None:
    """Write all vectors."""
    texts = json.loads((FOLDER / "texts.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        small_vocabularies(texts, Path(folder))
    real_files(texts)


if __name__ == "__main__":
    main()
