"""What the page says about the file that a run was exported to."""

from calibrant.decisions import RoutingRule
from calibrant.deployment import Decider, rule_digest
from calibrant.errors import InvalidInput
from calibrant.files import sha256_of
from calibrant.training import Run


def exported(run: Run, rule: RoutingRule | None) -> str:
    """The export with its digest, and whether it decides by the rule that is shown; empty without an export.

    Args:
        run: The run.
        rule: The rule on the page: a file that was exported before the rule was fitted decides by another.
    """
    path = run.onnx_path
    if not path.is_file():
        return ""
    name = f"Exported to {path.name}, SHA-256 {sha256_of(path)}"
    try:
        held = Decider.load(path).contents.rule_version
    except InvalidInput as error:  # damaged, or onnxruntime is not installed
        return f"{name}; what it decides by could not be read: {error}"
    if held == ("" if rule is None else rule_digest(rule)):
        return f"{name}; it decides {'nothing alone: it has no rule' if rule is None else 'by this rule'}."
    other = "without a rule" if not held else "by another rule"
    return f"{name}. It decides {other}, not as shown here: export it again (calibrant export)."
