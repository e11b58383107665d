"""Read run folders without torch: settings, predictions, policy, pruning audit; and find what a path refers to.

`calibrant.training.Run` extends `RunFolder` with all that needs torch.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from calibrant.calibration.base import warn_if_in_sample
from calibrant.decisions import Policy
from calibrant.decisions.policy import FILE_NAME
from calibrant.errors import InvalidInput, invalid
from calibrant.files import atomic_write, parse_json, read_json, read_toml, refuse_overwriting, sha256_of
from calibrant.predictions import Kind, Predictions, read_npz
from calibrant.tables import Displayed, Table

Split = Literal["val", "test"]
RECIPE = "recipe.toml"


# -- the folder ------------------------------------------------------------------------------------------------------


class RunFolder(Displayed):
    """A run folder, and the only class that knows which file lies where in it.

    `summary.json` is written last, so its presence says that the run is complete.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.recipe_path = self.path / RECIPE
        self.checkpoints = self.path / "checkpoints"
        self.log_path = self.path / "metrics.jsonl"  # one JSON object per epoch
        self.pruning_path = self.path / "pruning.npz"  # which samples left when, and the scores of all of them
        self.lock_path = self.path / ".lock"  # held by the process that writes the run
        self.summary_path = self.path / "summary.json"  # final metrics, environment and costs
        self.policy_path = self.path / FILE_NAME  # calibrator, rule and shortlist
        self.onnx_path = self.path / "model.onnx"
        self.report_path = self.path / "report.html"

    @classmethod
    def of(cls, path: str | Path) -> Self | None:
        """The run that `path` is the folder of, or that it has predictions of; None for a file of no run.

        >>> RunFolder.of("somewhere/val.npz") is None
        True
        """
        folder = Path(path)
        if folder.parent.name == "predictions" and not folder.is_dir():
            folder = folder.parent.parent
        return cls(folder) if is_run(folder) else None

    @property
    def settings(self) -> dict[str, Any]:
        """The recipe as plain values."""
        return read_toml(self.recipe_path, "recipe")

    @property
    def method(self) -> str:
        """Name of the training method."""
        section = self.settings.get("method")
        if not isinstance(section, dict) or not isinstance(section.get("name"), str):
            raise invalid(str(self.recipe_path), "name its method", repr(section))
        name: str = section["name"]
        return name

    @property
    def finished(self) -> bool:
        """Whether the run reached its end."""
        return self.summary_path.is_file()

    def refuse_unfinished(self) -> None:
        """Raise if the run has not reached its end."""
        if not self.finished:
            raise InvalidInput(
                f"run {self.path} is not finished. Continue it with: calibrant train --resume {self.path}"
            )

    @property
    def summary(self) -> dict[str, Any]:
        """Final metrics, environment and costs."""
        self.refuse_unfinished()
        content: dict[str, Any] = read_json(self.summary_path)
        check_json(SummaryContent, content, str(self.summary_path))
        return content

    def predictions_path(self, split: Split, *, best: bool = False) -> Path:
        """The predictions of a split as the network made them, of the last epoch or of the best one."""
        return self.path / "predictions" / f"{'best-' if best else ''}{split}.npz"

    def existing_predictions(self, split: Split, *, best: bool = False) -> Path:
        """The path of predictions as the network made them; a run that has none yet is refused."""
        path = self.predictions_path(split, best=best)
        if not path.is_file():
            raise InvalidInput(f"run {self.path} has no {split} predictions yet. Continue it with --resume.")
        return path

    def predictions(self, split: Split, *, best: bool = False) -> Predictions:
        """Predictions of the finished model, or of its best epoch if the recipe's `select` asks for it."""
        if best and self.settings.get("select", "last") == "last":
            hint = 'Train with select = "best:error", "best:nll" or "best:scaled-nll".'
            raise InvalidInput(f"run {self.path} kept the predictions of its last epoch alone. {hint}")
        return Predictions.load(self.existing_predictions(split, best=best))

    def policy(self) -> Policy | None:
        """The run's policy; None if it has none. One that was fitted on predictions of another run is refused."""
        if not self.policy_path.is_file():
            return None
        policy = Policy.load(self.policy_path)
        fitted = {policy.rule.fitted_on} if policy.rule is not None else set()
        if policy.calibrator is not None:
            fitted.add(policy.calibrator.provenance_.fitted_on)
        paths = (self.predictions_path("val"), self.predictions_path("test"))
        made = {sha256_of(path) for path in paths if path.is_file()}
        if fitted - made - {None}:
            hint = f"Fit it again (calibrant calibrate {self.path}), or move it away."
            got = "one fitted on other predictions, perhaps of an earlier training"
            raise invalid(str(self.policy_path), "be fitted on predictions of its run", got, hint)
        return policy

    def audit(self) -> "PruningAudit | None":
        """What pruning left out; None if nothing was pruned or nothing is known."""
        if not self.pruning_path.exists():
            return None
        audit = load_audit(self.pruning_path)
        if (audit.kept_counts == audit.class_sizes).all():  # also true without any epoch
            return None
        return audit

    def test_images(
        self,
        targets: NDArray[np.int64],  # noqa: ARG002 (for subclasses)
        data_dir: str | Path | None = None,  # noqa: ARG002
    ) -> NDArray[np.uint8] | None:
        """Images of the test set, (n, H, W, C), if they are at hand. Reading data sets needs `calibrant[train]`."""
        return None

    def training_samples(
        self,
        targets: NDArray[np.int64],  # noqa: ARG002 (for subclasses)
        positions: NDArray[np.int64],  # noqa: ARG002
        data_dir: str | Path | None = None,  # noqa: ARG002
    ) -> "list[Sample] | None":
        """Some of the samples that the run trained on, if they are at hand. Needs `calibrant[train]`."""
        return None

    def _overview(self) -> Table:
        state = "finished" if self.finished else "not finished"
        return Table(f"{self.path}, {state}", [("method", self.method)])


class Sample(NamedTuple):
    """A training sample: its id and its image, (H, W, C)."""

    identity: str
    image: NDArray[np.uint8]


def is_run(folder: Path) -> bool:
    """Whether `folder` is a run folder: it then has a recipe."""
    return (folder / RECIPE).is_file()


# -- what a path refers to -------------------------------------------------------------------------------------------


def source_path(source: str | Path, split: Split = "test") -> Path:
    """The predictions of a run if `source` is its folder, else `source` itself."""
    if is_run(Path(source)):
        return RunFolder(source).existing_predictions(split)
    return Path(source)


def load_predictions(source: str | Path, split: Split = "test", **reading: Any) -> Predictions:
    """Read predictions: those of a run, or what `Predictions.load` reads; large ones stay on disk.

    Args:
        source: A run folder, a file, or a folder or pattern of Parquet files.
        split: Of a run: which predictions.
        reading: Arguments of `Predictions.load`.
    """
    return Predictions.load(source_path(source, split), mmap="auto", **reading)


def policy_path(source: str | Path) -> Path:
    """Where the policy that is fitted on `source` is kept: in the run that it belongs to, else beside it."""
    run = RunFolder.of(source)
    return run.policy_path if run is not None else Path(source).with_name(FILE_NAME)


def load_judged(
    source: str | Path, *, raw: bool = False, kind: Kind | None = None, columns: Mapping[str, str] | None = None
) -> dict[str, Predictions]:
    """The predictions to evaluate, by name: a run gives its calibrated test predictions first, then the raw ones.

    A warning says if numbers are in-sample: if the calibrator was fitted on these cases.

    Args:
        source: A run folder, a file, or a folder or pattern of Parquet files.
        raw: Do not use the run's policy.
        kind: What the scores are, for files that do not say.
        columns: Other names of the target and the id.
    """
    predictions = load_predictions(source, "test", kind=kind, columns=columns)
    name = str(predictions.origin.path)
    policy = RunFolder(source).policy() if is_run(Path(source)) else None
    if raw or policy is None or policy.calibrator is None:
        return {name: predictions}
    warn_if_in_sample(policy.calibrator.provenance_, predictions.origin)
    return {f"{name}, calibrated by {FILE_NAME}": policy.calibrate(predictions), f"{name}, raw": predictions}


def calibration_sources(source: str | Path, apply: str | Path | None = None) -> tuple[Path, Path]:
    """What a calibrator is fitted on and applied to: validation and test predictions of a run, or two files.

    Args:
        source: A run folder, or predictions to fit on.
        apply: Predictions to calibrate, or a run folder; by default those of `source`, if it is a run folder.
    """
    fitted_on = source_path(source, "val")
    if apply is None and fitted_on == Path(source):
        raise invalid("apply", "name the predictions to calibrate if the source is no run folder", "nothing")
    return fitted_on, source_path(apply or source, "test")


def calibrated_paths(fitted_on: str | Path, applied_to: str | Path, out: str | Path | None = None) -> tuple[Path, Path]:
    """Where calibrated predictions and their policy are kept: beside their source, or as `out` says.

    Args:
        fitted_on: What the calibrator is fitted on. If that belongs to a run and `out` is None, the policy is the
            run's; else it is NAME.policy.json beside the calibrated predictions.
        applied_to: The predictions that are calibrated.
        out: Where to write the calibrated predictions; neither on what is read nor on predictions of the run.
    """
    predictions = Path(out or Path(applied_to).with_suffix(".calibrated.npz"))
    if predictions.suffix.lower() != ".npz":
        raise invalid("out", "end in .npz", str(predictions))
    policy = predictions.parent / f"{predictions.stem.removesuffix('.calibrated')}.policy.json"
    inputs = [Path(fitted_on), Path(applied_to)]
    run = RunFolder.of(fitted_on)
    if run is not None:
        inputs += [run.predictions_path("val"), run.predictions_path("test")]
        if out is None:
            policy = run.policy_path
    refuse_overwriting((predictions, policy), inputs)
    return predictions, policy


# -- the pruning audit -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class PruningAudit(Displayed):
    """What `pruning.npz` holds; all arrays are in the order of the data set.

    Attributes:
        target: Label.
        left: Epoch (counted from 1) after which the sample left; -1 if it never did or was re-admitted. The anneal
            does not erase it, and a rest for an epoch is not a leave.
        score: EMA of the top probability (bias-corrected if the pruner is).
        excess: EMA of the top probability minus the label's.
        predicted: Class predicted last; -1 if never observed.
        count: Number of batches that held the sample.
        kept: Whether the sample trains in the coming epoch.
        kept_counts: Shape (epochs, K): samples of each class trained on in each finished epoch.
        class_sizes: Shape (K,): samples of each class in the data set.
        settings: The pruner's settings.
    """

    target: NDArray[np.int64]
    left: NDArray[np.int64]
    score: NDArray[np.float32]
    excess: NDArray[np.float32]
    predicted: NDArray[np.int64]
    count: NDArray[np.int64]
    kept: NDArray[np.bool_]
    kept_counts: NDArray[np.int64]
    class_sizes: NDArray[np.int64]
    settings: dict[str, Any]

    def _overview(self) -> Table:
        rows = [
            ("left for good", f"{int((self.left >= 0).sum()):,}"),
            ("train in the coming epoch", f"{int(self.kept.sum()):,}"),
            ("sample updates", f"{int(self.kept_counts.sum()):,} of {len(self.target) * len(self.kept_counts):,}"),
        ]
        return Table(f"{len(self.target):,} samples, {len(self.kept_counts)} epochs", rows)

    def suspects(self, limit: int = 100) -> NDArray[np.intp]:
        """Positions of samples whose label the model kept contradicting, the most confident contradiction first."""
        doubtful = np.flatnonzero((self.predicted >= 0) & (self.predicted != self.target) & (self.excess > 0))
        return doubtful[np.argsort(-self.excess[doubtful], kind="stable")[:limit]]

    @property
    def kept_share(self) -> NDArray[np.float64]:
        """Shape (epochs, K): share of each class trained on in each finished epoch; NaN for a class without samples."""
        with np.errstate(invalid="ignore"):
            share: NDArray[np.float64] = self.kept_counts / self.class_sizes
        return share


# Type and smallest value of each array.
_ARRAYS = {
    "target": ("i", 0),
    "left": ("i", -1),
    "score": ("f", -1),
    "excess": ("f", -1),
    "predicted": ("i", -1),
    "count": ("i", 0),
    "kept": ("b", 0),
    "kept_counts": ("i", 0),
    "class_sizes": ("i", 0),
}


def save_audit(path: str | Path, audit: PruningAudit) -> None:
    """Write `pruning.npz`, atomically and without pickle."""
    if Path(path).suffix != ".npz":
        raise invalid("path", "end in .npz, as the record is a NumPy archive", path)
    header = json.dumps({"format": 1, "settings": audit.settings}, allow_nan=False)
    with atomic_write(path) as temporary, temporary.open("wb") as handle:
        np.savez_compressed(handle, header=np.array(header), **{name: getattr(audit, name) for name in _ARRAYS})


def load_audit(path: str | Path) -> PruningAudit:
    """Read what `pruner.save` wrote; arrays of other types, shapes or values are refused."""
    arrays = read_npz(path, (*_ARRAYS, "header"))
    missing = [name for name in (*_ARRAYS, "header") if name not in arrays]
    if missing:
        raise invalid(str(path), "be written by pruner.save", f"a file without {', '.join(missing)}")
    header = parse_json(str(arrays.pop("header")), str(path))
    check_json(_AuditHeader, header, str(path))
    samples, n_classes = arrays["target"].size, arrays["class_sizes"].size
    epochs = len(np.atleast_1d(arrays["kept_counts"]))
    largest = {"target": n_classes - 1, "predicted": n_classes - 1, "kept_counts": samples, "class_sizes": samples}
    largest |= {"left": 2**31, "count": 2**31, "score": 2, "excess": 2, "kept": 1}
    for name, (kind, least) in _ARRAYS.items():
        array = arrays[name]
        shape = {"class_sizes": (n_classes,), "kept_counts": (epochs, n_classes)}.get(name, (samples,))
        if array.dtype.kind != kind or array.shape != shape:
            rule = f"be of kind {kind!r} and shape {shape}"
            raise invalid(f"{name} in {path}", rule, f"{array.dtype.kind!r} and {array.shape}")
        # Written so that NaN is refused too.
        if not ((array >= least) & (array <= largest[name])).all():
            rule = f"lie in {least}..{largest[name]}"
            raise invalid(f"{name} in {path}", rule, "something else", "The file is damaged.")
    return PruningAudit(**arrays, settings=header["settings"])


# -- JSON in a run folder: anybody may have written it, so it is checked before it is used ---------------------------


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("text such as a label or a name must have no control characters")
    return text


Number = Annotated[float, Field(allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Epoch = Annotated[int, Field(ge=1, lt=2**31)]
Text = Annotated[str, Field(max_length=1000), AfterValidator(_printable)]
Scalar = bool | int | Number | Text | None


class Checked(BaseModel):
    """Base of the schemas: exact types; further keys are allowed."""

    model_config = ConfigDict(strict=True, extra="allow")


class Figures(Checked):
    """Accuracy and ECE."""

    accuracy: Number
    ece: Number


class _AuditHeader(Checked):
    format: Literal[1]
    settings: dict[str, Any]


class _Method(Checked):
    name: Text
    settings: dict[Text, Scalar | list[Scalar]]


class _Evaluation(Checked):
    n: Count
    test_error: Number
    nll: Number | None
    ece: Number


class _BestValidation(Figures):
    epoch: Count


class _Best(Checked):
    epoch: Epoch


class _Timing(Checked):
    train_seconds: NotNegative
    seconds: NotNegative


class SummaryContent(Checked):
    """What is read of `summary.json`."""

    method: _Method
    test: _Evaluation
    validation: _Evaluation
    best_validation: _BestValidation | None
    warnings: list[Text] = Field(default_factory=list)
    best: _Best | None = None
    samples_seen: Count
    samples_full: Annotated[int, Field(ge=1, lt=2**53)]
    epochs: Epoch | None = None
    seen_share: NotNegative
    samples_scored: Count = 0
    steps_mode: Text | None = None
    timing: _Timing
    environment: dict[Text, Scalar]
    concurrent_runs: Count | None = None


def check_json(model: type[BaseModel], content: Any, what: str) -> None:
    """Refuse content that breaks a rule of the model, in one line that names the place of the first fault."""
    try:
        model.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ""
        if first["loc"]:
            place = ".".join(str(part) for part in first["loc"][:4])
            where = f" at '{place[:80]}'"
        raise InvalidInput(f"{what} is damaged{where}: {first['msg'][0].lower()}{first['msg'][1:]}.") from error
