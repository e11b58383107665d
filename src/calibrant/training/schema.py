"""Types and bounds of the JSON that training writes into a run folder; `calibrant.runs` has those of the summary."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from calibrant.runs import Checked, Count, Epoch, Figures, NotNegative, Number, Text

Side = Annotated[int, Field(ge=1, le=100_000)]


class EpochLine(Checked):
    """A line of `metrics.jsonl`."""

    epoch: Epoch
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
    validation: Figures | None = None


class _BestSoFar(Checked):
    epoch: Epoch
    figure: Number


class _ModelInput(Checked):
    # Lists in JSON, as below.
    size: Annotated[list[Side], Field(min_length=2, max_length=2)] | None = None
    mean: list[Number] | None = None
    std: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] | None = None


class CheckpointValues(Checked):
    """What the JSON of a checkpoint holds beside its digests."""

    data: str
    classes: Side
    # A list in JSON; strict mode would refuse it for a tuple.
    image_shape: Annotated[list[Side], Field(min_length=3, max_length=3)]
    pruner: dict[str, Any]
    # Checkpoints of the first versions have none of these.
    mean: list[Number] = Field(default_factory=list)
    std: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(default_factory=list)
    log: list[EpochLine] | None = None
    best: _BestSoFar | None = None
    model_input: _ModelInput | None = None

    @model_validator(mode="after")
    def _one_per_channel(self) -> Self:
        for name in ("mean", "std"):
            if self.model_fields_set & {"mean", "std"} and len(getattr(self, name)) != self.image_shape[0]:
                raise ValueError(f"{name} must hold one number per channel")
        return self


class CheckpointContent(Checked):
    """The JSON of a checkpoint."""

    epoch: Epoch
    tensors_sha256: str
    values: CheckpointValues
