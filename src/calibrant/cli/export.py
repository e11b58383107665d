"""`calibrant export`: a run as one ONNX file with calibration and routing inside."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
from cyclopts import Parameter

from calibrant.cli._flags import TrustCode
from calibrant.cli._places import (
    CALIBRATOR,
    RULE,
    Origin,
    made_by,
    refuse_stale,
)
from calibrant.cli._say import say_json
from calibrant.errors import InvalidInput, invalid
from calibrant.files import refuse_overwriting
from calibrant.posthoc import SMOOTH, Calibrator, TemperatureScaling
from calibrant.routing import RoutingRule
from calibrant.serving import export_onnx
from calibrant.training import Run, newest_checkpoint


def export(
    run: Path,
    /,
    *,
    out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    rule: Path | None = None,
    calibrator: Path | None = None,
    uncalibrated: Annotated[bool, Parameter(negative="")] = False,
    trust_code: TrustCode = False,
    json: Annotated[bool, Parameter(negative="")] = False,
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
    json:
        Print JSON instead of a sentence.
    """
    opened = Run.open(run)
    newest = newest_checkpoint(opened.checkpoints)
    # Weights of a run that goes on are not what its figures will be about, and averaged weights come at the very end.
    if newest is None or not opened.finished:
        done = len(opened.epochs())
        raise InvalidInput(
            f"run {run} is not finished: {done} of {opened.recipe.epochs} epochs are done. "
            f"Continue it with: calibrant train --resume {run}"
        )
    about = newest.values
    if "mean" not in about:
        raise invalid(str(run), "be trained by a calibrant that keeps the normalisation", "an older checkpoint")
    rule = rule or (run / RULE if (run / RULE).is_file() else None)
    routing = None if rule is None else RoutingRule.load(rule)
    if rule is not None and routing is not None:
        routing.check_classes(about["classes"])
    target = out or run / "model.onnx"
    refuse_overwriting([target], [path for path in (rule, calibrator, newest.path) if path is not None])
    calibration = _calibration(run, calibrator, routing, about["classes"], uncalibrated=uncalibrated)
    if rule is not None and routing is not None:
        made = None if calibration.source is None else made_by(calibration.source)
        refuse_stale(run, rule, routing.fitted_on, calibrated=made)
    # Noise around the training images' mean: the comparison needs numbers of the right size, not the data set.
    noise = torch.randn(64, *about["image_shape"], generator=torch.Generator().manual_seed(0))
    centre, spread = (torch.tensor(about[name]).view(1, -1, 1, 1) for name in ("mean", "std"))
    check = export_onnx(
        opened.load_model(newest, trust_code=trust_code),
        target,
        example=(centre + spread * noise).clamp(0, 1),
        mean=about["mean"],
        std=about["std"],
        calibrator=calibration.calibrator,
        rule=routing,
    )
    if json:
        content = {
            "path": str(target),
            "automates": routing is not None and routing.automates,
            "rule": None if rule is None else str(rule),
            "calibrator": None if calibration.source is None else str(calibration.source),
            "calibrated": calibration.source is not None or (routing is not None and routing.temperature is not None),
            **asdict(check),
        }
        say_json(content)
        return
    sys.stdout.write(
        f"Wrote {target}. On {check.images} images it equals PyTorch to {check.largest_difference:.1g}.\n"
        f"{calibration.sentence}\n{_route_sentence(routing, rule)}\n"
    )


@dataclass(frozen=True)
class _Calibration:
    """What is exported beside a rule's own temperature, where it comes from, and a sentence about it."""

    calibrator: Calibrator | None
    source: Path | None
    sentence: str


def _calibration(
    run: Path, given: Path | None, rule: RoutingRule | None, classes: int, *, uncalibrated: bool
) -> _Calibration:
    """The run's calibrator, or the one given; refused where the rule's thresholds were not chosen behind it."""
    if given is not None and uncalibrated:
        raise invalid("--uncalibrated", "be left out where --calibrator is given", str(given))
    path = given or (run / CALIBRATOR if (run / CALIBRATOR).is_file() else None)
    own = None if rule is None else rule.temperature
    none = "Probabilities are NOT calibrated, they are the network's own: see calibrant calibrate."
    alone = none if own is None else f"Probabilities are calibrated by the rule's temperature, {own:.4f}."
    if path is None:
        return _Calibration(None, None, alone)
    made = made_by(path)
    joined = rule is not None and made is not None and rule.fitted_on == made
    if uncalibrated:
        if joined:
            raise invalid("--uncalibrated", f"be left out: the rule was fitted on what {path} made", "both")
        return _Calibration(None, None, alone)
    if own is not None and not joined:
        if given is not None:
            raise invalid("--calibrator", "be left out, the rule has its own temperature", str(path))
        return _Calibration(None, None, f"{alone} {path} is left out.")
    calibrator = _load(path, classes)
    refuse_stale(run, path, Origin.of(path).fitted_on)
    if rule is not None and rule.automates and not joined and not calibrator.identity_:
        _refuse_stranger(rule, path, run)
    both = "" if own is None else f", then by the rule's temperature, {own:.4f}"
    return _Calibration(calibrator, path, f"Probabilities are calibrated by {_words(calibrator)} of {path}{both}.")


def _load(path: Path, classes: int) -> Calibrator:
    calibrator = Calibrator.load(path)
    if not calibrator.identity_ and calibrator.method not in SMOOTH:
        way_out = f"Calibrate with another --method ({', '.join(SMOOTH[1:])}), or export with --uncalibrated."
        raise invalid(f"calibrator {path}", "be a map without steps", calibrator.method, way_out)
    if calibrator.n_classes_ != classes:
        raise invalid(str(path), f"be made for the {classes} classes of the run", f"{calibrator.n_classes_} classes")
    calibrator.refuse_other_kind("logits")
    return calibrator


def _words(calibrator: Calibrator) -> str:
    if calibrator.identity_:
        return "the map (the identity)"
    if isinstance(calibrator, TemperatureScaling):
        return f"the temperature {calibrator.temperature_:.4f}"
    return f"the {calibrator.method} map"


def _refuse_stranger(rule: RoutingRule, calibrator: Path, run: Path) -> None:
    """A rule without a temperature holds for the confidences it was fitted on, not for those of any calibrator."""
    if rule.fitted_on is not None:
        raise InvalidInput(
            f"the rule was fitted on predictions that {calibrator} did not make: its promise does not hold behind it. "
            f"Fit one with its own temperature (calibrant route fit {run} --calibrate), or export with --uncalibrated."
        )
    sys.stderr.write(
        f"calibrant: warning: the rule does not say what it was fitted on; its promise holds only if that was made by "
        f"{calibrator}.\n"
    )


def _route_sentence(rule: RoutingRule | None, path: Path | None) -> str:
    if rule is None:
        return "It has no routing rule, so it automates nothing: see calibrant route fit."
    return f"Routing is by {path}." if rule.automates else f"The rule {path} promises nothing, so it automates nothing."
