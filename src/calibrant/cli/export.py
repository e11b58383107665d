"""`calibrant export`: a run as one ONNX file with calibration and routing inside."""

from pathlib import Path
from typing import Annotated

from calibrant.cli._flags import Json, Out, Switch, TrustCode
from calibrant.cli._say import say, say_json
from calibrant.serving import export_onnx
from calibrant.training import Run


def export(
    run: Path,
    /,
    *,
    out: Out = None,
    rule: Path | None = None,
    calibrator: Path | None = None,
    uncalibrated: Annotated[bool, Switch] = False,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Write one ONNX file: images in; calibrated probabilities, class and route decision out.

    It takes float32 images (n, C, H, W) on the scale from 0 to 1 and is compared with PyTorch before it is kept.

    Parameters
    ----------
    run:
        A run folder.
    out:
        Where to write. Default: model.onnx in the run folder.
    rule:
        A rule written by "calibrant route fit". Default: rule.json in the run folder, if it is there.
    calibrator:
        A calibrator written by "calibrant calibrate", of a method without steps (not isotonic or histogram). Default:
        calibrator.json in the run folder, if it is there and the rule has no temperature of its own. A rule that was
        fitted on other predictions than it made is refused.
    uncalibrated:
        Leave the run's calibrator out.
    """
    written = export_onnx(
        Run.open(run), out, calibrator=calibrator, rule=rule, uncalibrated=uncalibrated, trust_code=trust_code
    )
    if as_json:
        say_json(written.to_dict())
    else:
        say(written.describe())
