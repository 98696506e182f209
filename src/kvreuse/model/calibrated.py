"""Where a model's calibration is kept, and the codec that it gives the model."""

from __future__ import annotations

from pathlib import Path

from kvreuse.errors import ConfigError
from kvreuse.kv.codec.calibration import Calibration
from kvreuse.kv.codec.codec import BF16, KVCodec, make_codec
from kvreuse.model.checkpoint import Checkpoint
from kvreuse.model.fetch.folders import cache_folder


def calibration_path(model_digest: str) -> Path:
    """Where the calibration of a model is kept; ``model_digest`` is its SHA-256 in hex.

    ConfigError where the user has no cache folder.
    """
    cache = cache_folder()
    if cache is None:
        raise ConfigError("there is no home folder to keep calibrations in; set XDG_CACHE_HOME")
    return cache / "kvreuse" / "calibration" / f"{model_digest}.safetensors"


def find_calibration(checkpoint: Checkpoint, given: str | None) -> Calibration | None:
    """The calibration in the file ``given``, or the one that ``kvreuse calibrate`` saved.

    None where no file is given and none was saved. ConfigError for one that cannot be read or was
    made for another model.
    """
    digest = checkpoint.digest().hex()
    path = Path(given) if given is not None else calibration_path(digest)
    if given is None and not path.exists():
        return None
    calibration = Calibration.load(path)
    calibration.check_model(digest)
    return calibration


def codec_for(
    checkpoint: Checkpoint, name: str, calibration: str | None, *, force: bool
) -> KVCodec:
    """The codec ``name`` for a model, with its calibration if there is one.

    ``calibration`` is the path of one, see ``find_calibration``. ConfigError as for
    ``find_calibration`` and ``make_codec``; and, unless ``force`` is set, for a codec that the
    calibration measured to be useless for this model.
    """
    if name == BF16.name:
        return BF16
    found = find_calibration(checkpoint, calibration)
    refusal = found.refusal(name) if found is not None else None
    if refusal is not None and not force:
        raise ConfigError(refusal)
    return make_codec(name, checkpoint.shape.layers, found)
