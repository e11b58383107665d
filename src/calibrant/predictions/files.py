"""Predictions as files: which format, and the `.npz` one."""

import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.errors import InvalidInput, did_you_mean, invalid
from calibrant.files import atomic_write
from calibrant.predictions.checks import Kind

if TYPE_CHECKING:
    from calibrant.predictions.core import Predictions

_KINDS: tuple[Kind, ...] = ("logits", "probabilities")
_KNOWN = (*_KINDS, "scores", "targets", "ids", "class_names")


def save(predictions: "Predictions", path: str | Path) -> None:
    """Write all or nothing."""
    if Path(path).suffix.lower() != ".npz":
        raise invalid("path", "end in .npz", str(path))
    arrays: dict[str, Any] = {predictions.kind: predictions.scores, "targets": predictions.targets}
    if predictions.ids is not None:
        arrays["ids"] = predictions.ids
    if predictions.class_names is not None:
        arrays["class_names"] = np.asarray(predictions.class_names)
    with atomic_write(path) as temporary, temporary.open("wb") as handle:
        np.savez(handle, **arrays)


def load(path: str | Path, kind: Kind | None) -> tuple[Kind, dict[str, Any]]:
    """Read arrays and say what the scores are."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            content = {name: archive[name] for name in archive.files}
    except FileNotFoundError as error:
        raise InvalidInput(f"{path} does not exist.") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, AttributeError) as error:
        raise invalid(str(path), "be a whole .npz file of plain arrays", f"something else ({error})") from error
    return _named_kind(path, content, kind), content


def _named_kind(path: str | Path, content: dict[str, Any], kind: Kind | None) -> Kind:
    for name in content:
        if name not in _KNOWN:
            raise invalid(f"{path}: arrays", f"be some of {', '.join(_KNOWN)}", repr(name), did_you_mean(name, _KNOWN))
    found = [name for name in (*_KINDS, "scores") if name in content]
    if len(found) != 1 or "targets" not in content:
        raise invalid(f"{path}: arrays", "be targets and one of logits, probabilities", ", ".join(content))
    if found[0] == "scores":
        if kind is None:
            raise InvalidInput(f"{path} does not say what its scores are. Say logits or probabilities (--from).")
        return kind
    content["scores"] = content.pop(found[0])
    if kind not in (None, found[0]):
        raise invalid(f"{path}: scores", f"be {kind} as you said", f"an array named {found[0]}")
    return found[0]  # type: ignore[return-value] # one of the two kinds
