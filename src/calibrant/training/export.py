"""Export a finished run: its network, normalisation and policy as one ONNX file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from calibrant.decisions import PolicyLike
from calibrant.deployment.input_spec import IMAGE_SLACK, IMAGES
from calibrant.deployment.networks import normalised
from calibrant.deployment.onnx_export import Exported, export_module, require_libraries
from calibrant.errors import InvalidInput, invalid
from calibrant.files import refuse_overwriting
from calibrant.training.data import load_dataset

if TYPE_CHECKING:
    from calibrant.training.run import Run

# Of the run's own data set, for the comparison with Python.
_REAL_IMAGES = 512
_NOISE_IMAGES = 64


def export_run(
    run: "Run",
    path: str | Path | None = None,
    *,
    policy: PolicyLike | None = None,
    raw: bool = False,
    trust_code: bool = False,
    class_names: Sequence[str] | None = None,
) -> Exported:
    """Write the network of a finished run and its policy as one ONNX file, and compare it with Python first.

    Args:
        run: The run.
        path: Where to write, `.onnx`; by default `model.onnx` in the run.
        policy: A policy or its file; by default the run's.
        raw: Do not use the run's policy: nothing is calibrated or automated.
        trust_code: Whether to import a network `module:name` that you have not used on this machine before.
        class_names: Kept in the file's metadata; the policy's names are the default.

    Raises:
        CheckFailed: The file computes something else than Python, or automates nothing although the rule does.
    """
    require_libraries()
    # The weights of an unfinished run are not what its figures will be about, and averaged weights come at the end.
    run.refuse_unfinished()
    checkpoint = run.checkpoint()
    values = checkpoint.values
    if "mean" not in values:
        raise invalid(str(run.path), "be trained by a calibrant that keeps the normalisation", "an older checkpoint")
    target = Path(path or run.onnx_path)
    sources = [run.policy_path, *run.checkpoints.glob("*")]
    if isinstance(policy, str | Path):
        sources.append(Path(policy))
    refuse_overwriting([target], sources)
    if policy is None and not raw:
        policy = run.policy()
    network = run.load_model(checkpoint, trust_code=trust_code).cpu().float()
    images, compared = _images(run, values)
    model = normalised(network, mean=values["mean"], std=values["std"])
    ranges = {IMAGES: (-IMAGE_SLACK, 1.0 + IMAGE_SLACK)}
    return export_module(model, target, policy, images, ranges=ranges, class_names=class_names, compared=compared)


def _images(run: "Run", values: Mapping[str, Any]) -> tuple[Tensor, str]:
    """Images to compare on: of the run's data set if it is at hand, and noise around their mean."""
    noise = torch.randn(_NOISE_IMAGES, *values["image_shape"], generator=torch.Generator().manual_seed(0))
    centre, spread = (torch.tensor(values[name]).view(1, -1, 1, 1) for name in ("mean", "std"))
    drawn = (centre + spread * noise).clamp(0, 1)
    name = run.recipe.data.name
    # A folder may hold a million photographs, and all of them would be read for a few.
    if not name.startswith("folder:"):
        try:
            test = load_dataset(name).test.images
        except InvalidInput:
            test = torch.empty(0)
        if test.ndim == 4 and list(test.shape[1:]) == list(values["image_shape"]):
            return torch.cat([test[:_REAL_IMAGES].float() / 255, drawn]), f"images (test images of {name}, and noise)"
    return drawn, f"images (of noise: {name} was not read here)"
