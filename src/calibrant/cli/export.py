"""`calibrant export`: a run, or a model of your own, as one ONNX file with calibration and routing inside."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from calibrant.cli._shared import Json, Out, PolicyFile, Repeated, Switch, TrustCode, answer
from calibrant.errors import importing, invalid
from calibrant.files import refuse_overwriting


def export(
    run: Path | None = None,
    /,
    *,
    model: str | None = None,
    weights: Path | None = None,
    cases: Annotated[Path | None, Parameter(name="--example")] = None,
    input_range: Annotated[list[str] | None, Parameter(name="--range"), Repeated] = None,
    out: Out = None,
    policy: PolicyFile = None,
    raw: Annotated[bool, Switch] = False,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Write one ONNX file: raw inputs in; calibrated probabilities, class, route decision and shortlist out.

    It is compared with Python before it is kept. "calibrant serve" runs it.

    Args:
        run: A run folder. Its file takes float32 images (n, C, H, W) on the scale from 0 to 1.
        model: Instead of a run: your own module:function, which returns a torch module that gives logits, or a fitted
            scikit-learn classifier.
        weights: With --model: a .safetensors file with the module's state dict.
        cases: With --model: an .npz with real cases, one array for each input by its name ("inputs" or "images" if
            there is one).
        input_range: With --model: smallest and largest number of an input, as input_ids=0:999; what lies outside is not
            automated. Default: as in the example.
        out: Where to write. Default: model.onnx in the run folder.
        raw: Do not use the run's policy: nothing is calibrated or automated.
    """
    from calibrant.deployment import export_onnx
    from calibrant.deployment.networks import open_model, parse_ranges, read_example

    if out is not None:
        refuse_overwriting([out], [weights, cases, policy])
    if (run is None) == (model is None):
        got = "neither" if run is None else "both"
        raise invalid("what is exported", "be a run folder or --model module:function", got)
    ranges = parse_ranges(input_range)
    if run is not None:
        for name, value in (("weights", weights), ("--example", cases), ("--range", ranges)):
            if value is not None:
                raise invalid(name, "be left out for a run, which has its own", value)
        with importing("the export of a run", "torch", "train"):
            from calibrant.training import Run
        written = Run(run).export_to_onnx(out, policy=policy, raw=raw, trust_code=trust_code)
    else:
        made = open_model(str(model), weights)
        if cases is None or out is None:
            raise invalid("--example and --out", "be given for a model that is no run", "none")
        written = export_onnx(made, out, policy=policy, example=read_example(cases), ranges=ranges)
    answer(written.describe(), written.to_dict(), as_json=as_json)
