"""Types and bounds of the JSON in a run folder: anybody may have written it, so it is checked before it is used."""

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from calibrant.errors import InvalidInput


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("text must have no control characters")
    return text


Number = Annotated[float, Field(allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Side = Annotated[int, Field(ge=1, le=100_000)]
Text = Annotated[str, Field(max_length=1000), AfterValidator(_printable)]
Scalar = bool | int | Number | Text | None


class _Model(BaseModel):
    # Keys of other versions are let through: a version adds keys, it does not change what the old ones mean.
    model_config = ConfigDict(strict=True, extra="allow")


class _Figures(_Model):
    accuracy: Number
    ece: Number


class EpochLine(_Model):
    """A line of `metrics.jsonl`."""

    epoch: Annotated[int, Field(ge=1, lt=2**31)]
    lr: Number
    kept: Count
    kept_share: Number
    samples: Count
    samples_scored: Count = 0
    loss: Number
    terms: dict[Text, Number]
    accuracy: Number
    ece: Number
    train_seconds: NotNegative
    seconds: NotNegative
    samples_per_second: Number
    selection: Number | None = None
    # Pydantic reads a missing key as None here; `validation: null` is never written, and harmless.
    validation: _Figures | None = None


class _BestSoFar(_Model):
    epoch: Annotated[int, Field(ge=1, lt=2**31)]
    figure: Number


class _ModelInput(_Model):
    # Lists in JSON, as below.
    size: Annotated[list[Side], Field(min_length=2, max_length=2)] | None = None
    mean: list[Number] | None = None
    std: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] | None = None


class CheckpointValues(_Model):
    """What the JSON of a checkpoint holds beside its digests."""

    data: str
    classes: Side
    # A list in JSON; strict mode would refuse it for a tuple.
    image_shape: Annotated[list[Side], Field(min_length=3, max_length=3)]
    pruner: dict[str, Any]
    # Checkpoints of the first versions have none of these.
    mean: list[Number] = []
    std: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] = []
    log: list[EpochLine] | None = None
    best: _BestSoFar | None = None
    model_input: _ModelInput | None = None

    @model_validator(mode="after")
    def _one_per_channel(self) -> Self:
        for name in ("mean", "std"):
            if self.model_fields_set & {"mean", "std"} and len(getattr(self, name)) != self.image_shape[0]:
                raise ValueError(f"{name} must hold one number per channel")
        return self


class CheckpointContent(_Model):
    """The JSON of a checkpoint."""

    epoch: Annotated[int, Field(ge=1, lt=2**31)]
    tensors_sha256: str
    values: CheckpointValues


class _Method(_Model):
    name: Text
    settings: dict[Text, Scalar | list[Scalar]]


class _Evaluation(_Model):
    n: Count
    test_error: Number
    nll: Number | None
    ece: Number


class _BestValidation(_Figures):
    epoch: Count


class _Best(_Model):
    select: Text
    epoch: Annotated[int, Field(ge=1, lt=2**31)]
    figure: Number
    test: _Evaluation
    validation: _Evaluation


class _Calibration(_Model):
    method: str
    temperature: Number
    cases: Count
    notes: list[str]


class _Timing(_Model):
    train_seconds: NotNegative
    seconds: NotNegative


class SummaryContent(_Model):
    """`summary.json`."""

    method: _Method
    test: _Evaluation
    validation: _Evaluation
    best_validation: _BestValidation | None
    calibration: _Calibration | None = None
    warnings: list[Text] = []
    best: _Best | None = None
    samples_seen: Count
    samples_full: Annotated[int, Field(ge=1, lt=2**53)]
    # Summaries of older versions have none of the two.
    epochs: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    policy: Text | None = None
    seen_share: NotNegative
    gradient_passes: Count | None = None
    samples_scored: Count = 0
    steps_mode: Text | None = None
    timing: _Timing
    environment: dict[Text, Scalar]


def check(model: type[BaseModel], content: Any, what: str) -> None:
    """Refuse content that breaks a rule of the model, in one line that names the place of the first fault."""
    try:
        model.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"][:4])
        where = f" at '{place[:80]}'" if place else ""
        raise InvalidInput(f"{what} is damaged{where}: {first['msg'][0].lower()}{first['msg'][1:]}.") from error
