import pytest

from calibrant.decisions import RoutingRule
from calibrant.deployment import export_onnx
from calibrant.files import sha256_of
from calibrant.report import build_page
from calibrant.report.exported import exported
from calibrant.training import paper_recipe, train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = train(paper_recipe("digits", epochs=1, method__name="nll"), tmp_path_factory.mktemp("run") / "r")
    run.calibrator_path.unlink(missing_ok=True)
    return run


def test_the_export_is_shown_with_its_digest_and_its_rule(run, visible_text):
    assert exported(run, None) == ""
    rule = RoutingRule(threshold=0.5, n_classes=10, note="A note.")
    rule.save(run.rule_path)
    export_onnx(run, rule=rule)
    digest = sha256_of(run.onnx_path)
    assert exported(run, rule) == f"Exported to model.onnx, SHA-256 {digest}; it decides by this rule."
    other = RoutingRule(threshold=0.7, n_classes=10)
    assert "It decides by another rule, not as shown here" in exported(run, other)
    text = visible_text(build_page(run, n_resamples=0, pictures=False))
    assert f"Exported to model.onnx, SHA-256 {digest}; it decides by this rule." in text
    run.onnx_path.write_bytes(run.onnx_path.read_bytes()[:-1] + b"x")
    assert "could not be read" in exported(run, rule)
