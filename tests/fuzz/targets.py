"""What is damaged, and the command or function that reads it."""

import csv
import gzip
import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from calibrant.cli import run
from calibrant.cli._shared import complain
from calibrant.errors import CalibrantError

Right = Callable[[Path, str], bool | None]


@dataclass(frozen=True)
class Target:
    """One way to read a file.

    Attributes:
        name: How it is called in the table.
        damaged: Files of the corpus of which one is damaged, as glob patterns.
        needed: Other files and folders of the corpus that are read.
        command: The arguments of `calibrant`, in which {here} and {out} are the folder of the files and an output.
        call: A function of that folder instead of a command.
        right: Whether an answer is right, from the folder and standard output.
        slow: Left to the campaign.
        renames: Whether names of files may be damaged too.
    """

    name: str
    damaged: tuple[str, ...]
    needed: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    call: Callable[[Path], Any] | None = None
    right: Right | None = None
    slow: bool = False
    renames: bool = False

    def run(self, here: Path, out: Path) -> int:
        """Read it; the exit code, 2 also where a check says by 1 that the file is not as it should be, 0 for alarms."""
        if self.call is None:
            code = run([part.format(here=here, out=out) for part in self.command])
            return {"data": 2, "monitor": 0}.get(self.command[0], code) if code == 1 else code
        try:
            self.call(here)
        except CalibrantError as error:
            complain(error)
            return 2
        return 0


# the right numbers ----------------------------------------------------------------------------------------------------


def _evaluation_of(name: str) -> Right:
    """Compare n and the error rate with those that other readers give; unknown where they cannot read the file."""

    def right(here: Path, out: str) -> bool | None:
        said = json.loads(out)
        try:
            scores, targets = _READERS[name.rpartition(".")[2]](here / name)
        except Exception:  # noqa: BLE001 (whatever another library raises on a damaged file)
            # An archive or a Parquet file that others refuse must not be read; of CSV there is no strict reader.
            return None if name.endswith(".csv") else False
        error = float(np.mean(scores.argmax(axis=1) != targets))
        return said["n"] == len(targets) and math.isclose(said["test_error"], error, abs_tol=1e-12)

    return right


def _from_npz(path: Path) -> tuple[Any, Any]:
    with np.load(path, allow_pickle=False) as archive:
        scores = archive["logits"] if "logits" in archive else archive["probabilities"]
        targets = archive["targets"]
        if targets.dtype.kind == "U":  # names of classes, or their numbers as text
            names = archive["class_names"].tolist()
            targets = _numbered(targets.tolist(), [f"logit_{name}" for name in names])
        return scores, targets


def _from_csv(path: Path) -> tuple[Any, Any]:
    with path.open(newline="", encoding="utf-8-sig") as handle:
        header, *rows = [row for row in csv.reader(handle) if row]
    places = [place for place, name in enumerate(header) if name.startswith(("logit_", "prob_", "probability_"))]
    target = header.index("target")
    labels = _numbered([row[target] for row in rows], [header[place] for place in places])
    return np.array([[float(row[place]) for place in places] for row in rows]), labels


def _numbered(labels: list[Any], columns: list[str]) -> Any:
    """Labels as numbers; names are those of the columns."""
    names = [column.partition("_")[2] for column in columns]
    return np.array([names.index(label) if label in names else int(label) for label in labels])


def _from_parquet(path: Path) -> tuple[Any, Any]:
    import pyarrow.parquet as pq

    table = pq.ParquetFile(path, page_checksum_verification=True).read()
    names = [name for name in table.column_names if name.startswith(("logit_", "prob_", "probability_"))]
    scores = np.stack([table.column(name).to_numpy() for name in names], axis=1)
    return scores, _numbered(table.column("target").to_pylist(), names)


_READERS: dict[str, Callable[[Path], tuple[Any, Any]]] = {
    "npz": _from_npz,
    "csv": _from_csv,
    "parquet": _from_parquet,
}


def _same_decisions(here: Path, out: str) -> bool:
    """A policy that is read decides as the undamaged one did; `expected.csv` holds those decisions."""
    del out
    return (here.parent / "out.csv").read_text() == (here / "expected.csv").read_text()


# readers without a command of their own -------------------------------------------------------------------------------


def _public(here: Path, name: str, **changes: Any) -> Any:
    """Read a set in the format of a public one, with few images."""
    from calibrant.training.data.formats import read_public
    from calibrant.training.data.public_sets import CATALOGUE

    entry = replace(CATALOGUE[name], folders=(".", "tiny-imagenet-200"), **changes)
    source = entry.find(here / "sets")
    return None if source is None else read_public(entry, source, None, None)


def _contents(here: Path, **names: tuple[str, ...]) -> Any:
    """The sizes and digests of the undamaged files: they are compared before a format's own reader begins."""
    from calibrant.training.data.public_sets import OfficialFile

    known = json.loads((here / "digests.json").read_text())
    return {split: tuple(OfficialFile(name, *known[name]) for name in files) for split, files in names.items()}


def _read_idx(here: Path) -> Any:
    contents = _contents(here, train=("train-images", "train-labels"), test=("test-images", "test-labels"))
    return _public(here, "mnist", contents=contents, train=6, test=3, class_names=("a", "b", "c"))


def _read_cifar(here: Path) -> Any:
    contents = _contents(here, train=("batch.bin",), test=("batch.bin",))
    return _public(here, "cifar10", contents=contents, train=4, test=4, class_names=tuple("abcd"))


def _read_svhn(here: Path) -> Any:
    contents = _contents(here, train=("train_32x32.mat",), test=("test_32x32.mat",))
    return _public(here, "svhn", contents=contents, train=4, test=4, class_names=tuple("abcd"))


def _read_tiny(here: Path) -> Any:
    return _public(here, "tiny-imagenet", train=2, test=1)


def _recipe(here: Path) -> Any:
    from calibrant.training import Recipe

    return Recipe.load(here / "recipe.toml").plan()


def _study(here: Path) -> Any:
    from calibrant.studies import StudySpec

    return StudySpec.load(here / "study.toml")


def _records(here: Path) -> Any:
    from calibrant.studies import read_records, summarise
    from calibrant.studies.result_tables import paper_tables

    return paper_tables(summarise({"all": read_records(here / "records")}, "all"))


def _audit(here: Path) -> Any:
    from calibrant.pruning import load_audit

    return load_audit(here / "run" / "pruning.npz").kept_share


def _policy(here: Path) -> Any:
    from calibrant import Predictions
    from calibrant.decisions import Policy

    return Policy.load(here / "policy.json").decide(Predictions.load(here / "test.npz"))


def _found(here: Path) -> Any:
    from calibrant.deployment import DecisionLog

    with DecisionLog(here / "decisions.db") as log:
        return log.find("case-1"), len(log)


def _served(here: Path) -> Any:
    """A body as the service reads it, and its cases decided and logged."""
    from calibrant.decisions import Policy
    from calibrant.deployment import Decider
    from calibrant.deployment.decision import CasesBody
    from calibrant.deployment.networks import InputSpec
    from calibrant.deployment.onnx_file import Contents
    from calibrant.deployment.service import read_body

    inputs = (InputSpec("inputs", "float32", (3,), -9.0, 9.0),)
    contents = Contents(inputs=inputs, network="0" * 64, policy=Policy.load(here / "policy.json"))
    with TemporaryDirectory() as place:
        log = Path(place) / "log.db"
        decider = Decider(contents, lambda arrays: arrays["inputs"], log=log)
        cases = read_body((here / "body.json").read_bytes(), CasesBody)
        decisions = [each.to_dict(decider.class_names) for each in decider.decide(**dict(cases))]
        assert decider.log is not None
        decider.log.close()
    return json.dumps(decisions, allow_nan=False)


def _labelled(here: Path) -> Any:
    from calibrant.deployment import DecisionLog
    from calibrant.deployment.decision import LabelsBody
    from calibrant.deployment.service import read_body

    body = read_body((here / "told.json").read_bytes(), LabelsBody)
    with DecisionLog(here / "decisions.db") as log:
        return log.label_all(body.labels)


def _streamed(here: Path) -> Any:
    from calibrant.training.data import load_dataset

    found = load_dataset(f"folder:{here}/pictures", data_path="stream")
    return [each[row] for each in (found.train, found.test) for row in range(len(each))]


def _weights(here: Path) -> Any:
    from calibrant.training.models import build_model
    from calibrant.training.models.libraries import load_weights

    (file,) = (here / "run" / "checkpoints").glob("*2.safetensors")
    return load_weights(build_model("tiny", n_classes=3, image_shape=(1, 8, 8)), file)


def _watch(name: str, *more: str) -> tuple[str, ...]:
    return ("monitor", f"{{here}}/{name}", "--policy", "{here}/policy.json", *more, "--json")


_APPLY = ("route", "apply", "{here}/policy.json", "{here}/test.npz", "--out", "{out}.csv")
_ROUTED = ("policy.json", "test.npz", "expected.csv")
_RUN_FILES = ("run/*.toml", "run/*.json", "run/*.jsonl", "run/*.npz", "run/predictions/*", "run/checkpoints/*")
_PAUSED = tuple(pattern.replace("run/", "paused/") for pattern in _RUN_FILES)

TARGETS = (
    *(
        Target(name, (name,), command=("evaluate", f"{{here}}/{name}", "--json"), right=_evaluation_of(name))
        for name in ("test.npz", "test.csv", "test.parquet")
    ),
    Target("route test.csv", ("test.csv",), _ROUTED, tuple(part.replace(".npz", ".csv") for part in _APPLY)),
    Target("route policy.json", ("policy.json",), _ROUTED, _APPLY, right=_same_decisions),
    Target("policy", ("policy.json",), ("test.npz",), call=_policy),
    Target("recipe", ("recipe.toml",), call=_recipe),
    Target("study", ("study.toml",), call=_study),
    Target("records", ("records/*",), ("records",), call=_records),
    Target("pruning.npz", ("run/pruning.npz",), call=_audit),
    Target("images.npz", ("images.npz",), command=("data", "check", "arrays:{here}/images.npz", "--json")),
    Target(
        "pictures",
        ("pictures/*/*",),
        ("pictures",),
        ("data", "check", "folder:{here}/pictures", "--json"),
        renames=True,
    ),
    Target("monitor decisions.csv", ("decisions.csv",), ("policy.json",), _watch("decisions.csv")),
    Target("monitor decisions.parquet", ("decisions.parquet",), ("policy.json",), _watch("decisions.parquet")),
    Target(
        "monitor labels.csv",
        ("labels.csv",),
        ("policy.json", "decisions.csv"),
        _watch("decisions.csv", "--labels", "{here}/labels.csv"),
    ),
    Target(
        "monitor parts",
        ("parts/*",),
        ("parts", "policy.json"),
        _watch("parts"),
    ),
    Target("monitor decisions.db", ("decisions.db",), command=("monitor", "{here}/decisions.db", "--json")),
    Target("find in decisions.db", ("decisions.db",), call=_found),
    Target("serve body", ("body.json",), ("policy.json",), call=_served),
    Target("serve labels", ("told.json",), ("decisions.db",), call=_labelled),
    Target("stream pictures", ("pictures/*/*",), ("pictures",), call=_streamed, renames=True),
    Target("weights", ("run/checkpoints/*",), ("run",), call=_weights),
    Target("idx", ("sets/*.gz",), ("sets", "digests.json"), call=_read_idx),
    Target("cifar", ("sets/batch.bin",), ("sets", "digests.json"), call=_read_cifar),
    Target("mat", ("sets/*.mat",), ("sets", "digests.json"), call=_read_svhn),
    Target("tiny-imagenet", ("sets/tiny-imagenet-200/**/*.*",), ("sets",), call=_read_tiny),
    Target("record a run", _RUN_FILES, ("run",), ("record", "{here}/run", "--out", "{out}", "--json"), slow=True),
    Target("report a run", _RUN_FILES, ("run",), ("report", "{here}/run", "-o", "{out}.html"), slow=True),
    Target("resume a run", _PAUSED, ("paused", "images.npz"), ("train", "--resume", "{here}/paused"), slow=True),
    Target("export a run", _RUN_FILES, ("run",), ("export", "{here}/run", "--out", "{out}.onnx"), slow=True),
)


def prepare(corpus: Path) -> None:
    """Write down what the undamaged files give."""
    digests = {}
    for path in (corpus / "sets").glob("*.*"):
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        digests[path.name.removesuffix(".gz")] = len(content), f"md5:{hashlib.md5(content).hexdigest()}"
    (corpus / "digests.json").write_text(json.dumps(digests))
    out = corpus / "expected"
    assert run([part.format(here=corpus, out=out) for part in _APPLY]) == 0
