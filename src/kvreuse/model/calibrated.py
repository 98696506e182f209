"""Where a model's calibration lies, and the codec that a model gets by it."""

from __future__ import annotations

from pathlib import Path

from kvreuse.errors import ConfigError
from kvreuse.kv.codec.calibration import Calibration
from kvreuse.kv.codec.codec import BF16, KVCodec, make_codec
from kvreuse.model.fetch.folders import cache_folder
from kvreuse.model.gguf.container import GGUFFile
from kvreuse.shape import ModelShape


def calibration_path(model_digest: str) -> Path:
    """Where the calibration of a model's file, known by its SHA-256 in hex, is kept and found.

    ConfigError where the user has no cache folder.
    """
    cache = cache_folder()
    if cache is None:
        raise ConfigError("there is no home folder to keep calibrations in; set XDG_CACHE_HOME")
    return cache / "kvreuse" / "calibration" / f"{model_digest}.safetensors"


def find_calibration(file: GGUFFile, given: str | None) -> Calibration | None:
    """The calibration in the file ``given``, or the one that ``kvreuse calibrate`` left; None where
    nothing was given and it left none. ConfigError for one that cannot be read, or is of another
    model.
    """
    digest = file.sha256().hex()
    path = Path(given) if given is not None else calibration_path(digest)
    if given is None and not path.exists():
        return None
    calibration = Calibration.load(path)
    calibration.check_model(digest)
    return calibration


def codec_for(
    file: GGUFFile, spec: ModelShape, name: str, calibration: str | None, *, force: bool
) -> KVCodec:
    """The codec ``name`` for the model of ``file``, with the calibration that there is for it.

    ConfigError as for ``find_calibration`` and ``make_codec``; and, unless ``force`` is given, for
    a codec that was measured to be of no use on this model.
    """
    if name == BF16.name:
        return BF16
    found = find_calibration(file, calibration)
    refusal = found.refusal(name) if found is not None else None
    if refusal is not None and not force:
        raise ConfigError(refusal)
    return make_codec(name, spec.layers, found)
