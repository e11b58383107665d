"""Tables through scikit-learn and texts through a small transformer: the file decides as Python does.

`benchmarks/serving.py` shows the same on 10,000 cases each.
"""

import numpy as np
import onnxruntime
import pytest
import torch
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from calibrant import Predictions
from calibrant.calibration import make_calibrator
from calibrant.decisions import Policy, RoutingRule, choose_shortlist, choose_threshold
from calibrant.deployment import Decider, export_onnx
from calibrant.errors import InvalidInput


@pytest.fixture(scope="module")
def table():
    return make_classification(5000, 12, n_informative=8, n_classes=3, class_sep=2.0, random_state=0)


@pytest.mark.parametrize(
    ("make", "method", "dtype"),
    [
        (lambda: make_pipeline(StandardScaler(), LogisticRegression()), "isotonic", "float64"),
        (lambda: RandomForestClassifier(20, max_depth=6, random_state=0), "beta", "float32"),
        (lambda: RandomForestClassifier(20, max_depth=6, random_state=0), None, "float32"),
    ],
    ids=["pipeline", "forest", "forest without a calibrator"],
)
def test_a_scikit_learn_model(table, make, method, dtype, tmp_path):
    x, y = table
    names = np.array(["ant", "bee", "cow"])
    estimator = make().fit(x[:1000], names[y[:1000]])

    def said(rows):
        return Predictions.from_probabilities(estimator.predict_proba(x[rows]), y[rows], class_names=names.tolist())

    calibrator = None if method is None else make_calibrator(method).fit(said(slice(1000, 1500)))
    policy = Policy(3, calibrator, class_names=tuple(names.tolist()))

    def seen(rows):
        return policy.calibrate(said(rows))

    rule = choose_threshold(seen(slice(1500, 2500)), 0.9)
    shortlist = choose_shortlist(seen(slice(2500, 3000)), 0.9, rule=rule)
    deployed = Policy(3, calibrator, rule, shortlist)
    # Exactly as wide as the cases: the outermost ones lie inside.
    ranges = {"inputs": (x.min(), x.max())}
    written = export_onnx(estimator, tmp_path / "m.onnx", example=x[1000:2000], ranges=ranges, policy=deployed)
    assert written.decisions_differ == 0
    assert written.automated > 100
    decider = Decider.load(tmp_path / "m.onnx")
    assert decider.contents.inputs[0].dtype in (dtype, "float64")
    assert decider.policy.class_names == ("ant", "bee", "cow")
    decisions = decider.decide(x[3000:])
    routed, listed = deployed.decide(said(slice(3000, None))), shortlist.listed(seen(slice(3000, None)))
    assert [each.automate for each in decisions] == routed.automate.tolist()
    assert [each.predicted for each in decisions] == routed.predicted.tolist()
    np.testing.assert_allclose([each.confidence for each in decisions], routed.confidence, atol=1e-5)
    inputs = {"inputs": x[3000:].astype(decider.contents.inputs[0].dtype)}
    (automate,) = onnxruntime.InferenceSession(str(tmp_path / "m.onnx")).run(["automate"], inputs)
    assert (automate == routed.automate).all()
    assert [set(each.shortlist) for each in decisions] == [
        set() if auto else set(np.flatnonzero(row)) for auto, row in zip(routed.automate, listed, strict=True)
    ]


def test_what_cannot_be_converted_is_one_line(table, tmp_path):
    x, y = table
    fine = {"example": x[:10]}
    for model, arguments, message in [
        (
            HistGradientBoostingClassifier(max_iter=2).fit(x[:200], y[:200]),
            fine,
            "skl2onnx cannot convert HistGradient",
        ),
        (LogisticRegression(), fine, "a fitted scikit-learn classifier with predict_proba, got LogisticRegression"),
        ("model.pkl", fine, "a fitted scikit-learn classifier with predict_proba, got str"),
        (LinearSVC().fit(x, y), fine, "got LinearSVC. scikit-learn's CalibratedClassifierCV adds predict_proba"),
        (LogisticRegression().fit(x, y), {"example": x[0]}, "be numbers of shape"),
        (LogisticRegression().fit(x, y), {"example": x[:3].astype(object)}, "Encode columns of text"),
        (
            LogisticRegression().fit(x, y),
            {**fine, "policy": Policy(4)},
            "policy must be made for the model's 3",
        ),
    ]:
        with pytest.raises(InvalidInput, match=message) as caught:
            export_onnx(model, tmp_path / "m.onnx", **arguments)
        assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_transformer_with_token_ids_and_a_mask(tmp_path):
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertForSequenceClassification(BertConfig(vocab_size=60, max_position_embeddings=12, num_labels=3, **sizes))
    with torch.no_grad():
        model.classifier.weight *= 60  # an untrained model is sure of nothing
    rng = np.random.default_rng(0)
    mask = torch.from_numpy((np.arange(12) < rng.integers(3, 13, 600)[:, None]).astype(np.int64))
    cases = {"input_ids": torch.from_numpy(rng.integers(1, 60, (600, 12))) * mask, "attention_mask": mask}
    with torch.no_grad():
        logits = model.eval()(**cases).logits
    rule = RoutingRule(threshold=float(logits.softmax(1).amax(1).double().median()) + 1e-4, n_classes=3)
    policy = Policy(3, rule=rule)
    ranges = {"input_ids": (0, 59), "attention_mask": (0, 1)}
    first = {name: values[:100] for name, values in cases.items()}
    written = export_onnx(model, tmp_path / "m.onnx", example=first, policy=policy, ranges=ranges)
    assert (written.cases, written.decisions_differ) == (100, 0)
    decisions = Decider.load(tmp_path / "m.onnx").decide(cases)
    assert [each.automate for each in decisions] == policy.decide(logits, "logits").automate.tolist()
    assert 200 < sum(each.automate for each in decisions) < 400
    with pytest.raises(InvalidInput, match=r"input 'input_ids' must be whole numbers in rows .* got dtype float32"):
        Decider.load(tmp_path / "m.onnx").decide({**cases, "input_ids": cases["input_ids"].float()})
    with pytest.raises(InvalidInput, match=r"inputs must have as many cases each"):
        Decider.load(tmp_path / "m.onnx").decide({**cases, "attention_mask": mask[:5]})
