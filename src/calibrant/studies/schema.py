"""Types and bounds of a record's JSON: anybody may have written it, so it is checked as a whole before it is used."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from calibrant.metrics import Evaluation


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("label and names must be text without control characters")
    return text


Number = Annotated[float, Field(allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Text = Annotated[str, Field(max_length=1000), AfterValidator(_printable)]
Digest = Annotated[str, Field(max_length=100), AfterValidator(_printable)]
Scalar = bool | int | Number | Text | None
Setting = Scalar | list[Scalar]


class _Model(BaseModel):
    # Keys of other versions are let through: a version adds keys, it does not change what the old ones mean.
    model_config = ConfigDict(extra="allow")


class _ConfidentSet(_Model):
    delta: Fraction
    share: Fraction
    accuracy: Fraction | None
    ece: Fraction | None


class _Evaluation(_Model):
    n: Annotated[int, Field(ge=1, lt=2**53)]
    classes: Annotated[int, Field(ge=2, lt=2**31)]
    n_bins: Annotated[int, Field(ge=1, lt=2**31)]
    test_error: Fraction
    nll: Number | None
    brier: Number
    ece: Fraction
    auroc: Fraction | None
    noise_floor: Number
    noise_floor_95: Number
    thresholds: Annotated[list[_ConfidentSet], Field(max_length=100)]
    intervals: dict[Text, Annotated[list[Number | None], Field(min_length=2, max_length=2)] | None] = {}


def _evaluation(content: dict[str, Any]) -> dict[str, Any]:
    # Strict: what is checked here is used as it is, and "0.1" is no number.
    _Evaluation.model_validate(content, strict=True)
    missing = {"share@0.95", "share@0.99"} - Evaluation.from_dict(content).values().keys()
    if missing:
        raise ValueError(f"an evaluation with {missing.pop()}")
    return content


def _both(content: dict[str, Any]) -> dict[str, Any]:
    if set(content) != {"10", "15"}:
        raise ValueError("evaluations with 10 and with 15 bins")
    return content


def _all_splits(content: dict[str, Any]) -> dict[str, Any]:
    if set(content) != {"val", "test"}:
        raise ValueError("digests of val and test")
    return content


EvaluationContent = Annotated[dict[str, Any], AfterValidator(_evaluation)]
"""What `Evaluation.to_dict` gives."""
Evaluations = Annotated[dict[str, EvaluationContent], AfterValidator(_both)]
"""Number of bins, as text, to the evaluation with it."""
PredictionDigests = Annotated[dict[str, Digest], AfterValidator(_all_splits)]
"""SHA-256 of a run's predictions on its validation and test parts."""


class _Named(_Model):
    name: Text


class _Engine(_Model):
    precision: Text
    tune: bool = False


class _Recipe(_Model):
    seed: Count
    epochs: Annotated[int, Field(ge=1, lt=2**31)]
    data: _Named
    model: _Named
    method: _Named
    engine: _Engine
    own_code: dict[Text, Digest] = {}


class _Automation(BaseModel):
    model_config = ConfigDict(extra="forbid")

    share: Fraction
    accuracy: Fraction | None
    scaled_share: Fraction
    scaled_accuracy: Fraction | None


def _automation(content: dict[str, Any]) -> dict[str, Any]:
    checked = _Automation.model_validate(content)
    pairs = ((checked.share, checked.accuracy), (checked.scaled_share, checked.scaled_accuracy))
    if any((share == 0) != (accuracy is None) for share, accuracy in pairs):
        raise ValueError("an accuracy where something is automated, and none where nothing is")
    return content


AutomationContent = Annotated[dict[str, float | None], AfterValidator(_automation)]
"""What may be automated at one promised accuracy."""


class _Best(BaseModel):
    model_config = ConfigDict(extra="forbid")

    select: Text
    epoch: Annotated[int, Field(ge=1, lt=2**31)]
    test: Evaluations
    test_scaled: Evaluations
    validation: EvaluationContent
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _best(content: dict[str, Any]) -> dict[str, Any]:
    _Best.model_validate(content, strict=True)
    return content


BestContent = Annotated[dict[str, Any], AfterValidator(_best)]
"""The figures of the best epoch."""


def _recipe(content: dict[str, Any]) -> dict[str, Any]:
    _Recipe.model_validate(content)
    return content


RecipeContent = Annotated[dict[str, Any], AfterValidator(_recipe)]
"""A recipe of any version: the parts that tables need."""
