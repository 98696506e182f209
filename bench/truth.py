"""How close the engine is to a float32 forward pass: KL divergence, top-1 agreement, perplexity.

    python bench/truth.py MODEL [--text FILE ...] [--tokens 1024] [--kv-cache-dtype LIST]
                          [--isa PATH] [--json]

MODEL is a GGUF file or a name that ``kvreuse pull`` knows. Without ``--text`` the text is
the standard library's ``pydoc_data.topics``. Codecs beside bf16 take the calibration that
``kvreuse calibrate`` left. Exits with 1 where a bound is broken; the bounds are meant for
1,024 tokens, and for keys and values in bf16.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.oracle import Fidelity, Oracle
from tests.truth import TOKENS, EngineModel, measure_all, standard_text

from kvreuse.errors import ConfigError, KVReuseError
from kvreuse.kv.codec.codec import BF16
from kvreuse.model.calibrated import codec_for
from kvreuse.model.fetch.source import resolve
from kvreuse.model.open import open_checkpoint

STANDARD = "pydoc_data.topics"


def main(arguments: list[str] | None = None) -> int:
    """Measure every text asked for; the exit status."""
    options = _parser().parse_args(arguments)
    try:
        path = resolve(options.model)
        texts = {name: _read(name) for name in options.text or [STANDARD]}
        engine = EngineModel(path, max_tokens=options.tokens, isa=options.isa)
        engines = _with_codecs(engine, path, options.kv_cache_dtype.split(","))
        tokens = {name: _encode(engine, name, text) for name, text in texts.items()}
    except KVReuseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    oracle = Oracle(path)
    found = {
        f"{name}, {codec}": fidelity
        for name, ids in tokens.items()
        for codec, fidelity in measure_all(oracle, engines, ids).items()
    }
    print(_json(found) if options.json else _table(found))
    bounded = [found.get(f"{name}, {BF16.name}") for name in tokens]
    return int(any(fidelity is not None and fidelity.faults() for fidelity in bounded))


def _with_codecs(engine: EngineModel, path: Path, names: list[str]) -> dict[str, EngineModel]:
    """The model with keys and values in each codec. ConfigError for a codec that is none."""
    with open_checkpoint(path) as checkpoint:
        codecs = {name: codec_for(checkpoint, name, None, force=True) for name in names}
    return {name: engine.with_codec(codec) for name, codec in codecs.items()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="truth.py", description="The engine against a float32 forward pass over the same file."
    )
    parser.add_argument("model", metavar="MODEL", help="a GGUF file or a name that pull knows")
    parser.add_argument(
        "--text", action="append", metavar="FILE", help=f"a UTF-8 text; default: {STANDARD}"
    )
    parser.add_argument(
        "--tokens", type=_count, default=TOKENS, help="of each text, from its start"
    )
    parser.add_argument(
        "--kv-cache-dtype", default=BF16.name, metavar="LIST", help="codecs, with commas between"
    )
    parser.add_argument("--isa", help="instruction-set path of the kernels")
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"at least 2 tokens, not {text!r}")
    return int(text)


def _read(name: str) -> str:
    if name == STANDARD:
        return standard_text()
    try:
        return Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {name!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{name!r} is not UTF-8 text") from None


def _encode(engine: EngineModel, name: str, text: str) -> list[int]:
    token_ids = engine.encode(text)
    if len(token_ids) < 2:
        raise ConfigError(f"{name!r} has {len(token_ids)} tokens, a perplexity needs 2 or more")
    return token_ids


def _json(found: dict[str, Fidelity]) -> str:
    rows = {
        name: {
            **dataclasses.asdict(fidelity),
            "perplexity_ratio": fidelity.perplexity_ratio,
            "faults": fidelity.faults(),
        }
        for name, fidelity in found.items()
    }
    return json.dumps(rows, indent=2)


def _table(found: dict[str, Fidelity]) -> str:
    width = max(len(name) for name in found)
    lines = [
        f"{'text':{width}}  tokens   mean KL    max KL   top-1"
        "  perplexity: float32    engine   change"
    ]
    lines += [
        f"{name:{width}}  {f.tokens:6d}  {f.mean_kl:8.2e}  {f.max_kl:8.2e}  {f.top1:6.2%}"
        f"  {f.reference_perplexity:19.3f}  {f.perplexity:8.3f}  {f.perplexity_ratio - 1:+7.2%}"
        f"  {'; '.join(f.faults()) or 'within bounds'}"
        for name, f in found.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
